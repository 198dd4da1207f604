"""Values of a graph of torch's as ours has them: plain numbers, attributes, tensors with elements."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import Node

from torchipu.capture.fx_source import (
    source_of,
)
from torchipu.capture.fx_types import dtype_of
from torchipu.capture.refusals import unknown_size
from torchipu.capture.symbols import NoFormula
from torchipu.errors import CaptureError
from torchipu.fp8.torch_types import as_bytes
from torchipu.ir.graph import Tensor


def are_bfloats(node: Node) -> bool:
    """Whether all tensors that a call takes are bfloat16, for which the graph has floats."""
    values = [operand.meta.get("val") for operand in node.all_input_nodes]
    return all(value.dtype is torch.bfloat16 for value in values if isinstance(value, torch.Tensor))


def masked_results(results: object, mask: object) -> object:
    """Leave out results that the call's ``output_mask`` turns off: the fake call gives them, the real one does not."""
    if not isinstance(mask, list) or not isinstance(results, (list, tuple)):
        return results
    return [result if wanted else None for result, wanted in zip(results, mask, strict=True)]


def as_results(returned: Any) -> tuple[object, ...]:
    """Return what a graph returns as a tuple of results."""
    return tuple(returned) if isinstance(returned, (list, tuple)) else (returned,)


def concrete(value: object, node: Node) -> object:
    """Return a plain number, or raise when it depends on data."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    known = getattr(value.node, "maybe_as_int" if isinstance(value, torch.SymInt) else "constant", None)
    known = known() if callable(known) else known
    if known is None:
        raise unknown_size(node)
    return known


def holds_tensors(value: object) -> bool:
    """Whether a value is a list or a tuple with tensors of our graph."""
    return isinstance(value, (list, tuple)) and any(isinstance(member, Tensor) for member in value)


def attribute_of(value: object, node: Node) -> object:
    """Return a plain Python value for an argument that is no tensor."""
    if isinstance(value, torch.dtype):
        return dtype_of(value, node)
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        raise NoFormula(f"{node.name} takes {value}")
    if isinstance(value, (list, tuple)):
        return [attribute_of(member, node) for member in value]
    return value


def real_value(value: torch.Tensor, node: Node) -> torch.Tensor:
    """Return a value that neither autograd nor a fake mode follows.

    Raises:
        CaptureError: There is none: forward kept the tensor of an earlier run, in a list outside the model perhaps.
    """
    if isinstance(value, (FakeTensor, FunctionalTensor)) or _lacks_storage(value) and not value._is_zerotensor():
        raise CaptureError(
            f"{node.name}, of size {list(value.shape)}, was made by an earlier run of forward, which left it outside, "
            "or in the body of a loop or a branch, which does not return it",
            op=node.format_node(), source=source_of(node),
            remedy="make it anew in each run, return it from the body, or keep it in a buffer that forward writes into",
        )
    return as_bytes(value.detach().clone() if value._is_zerotensor() else value.detach())


def _lacks_storage(value: torch.Tensor) -> bool:
    """Whether a tensor stands for one whose elements only a run has, though its class does not tell."""
    try:
        value.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return True
    return False
