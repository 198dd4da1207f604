"""Which element type of ours holds a torch tensor, and which tensors no program can hold."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchipu.capture.fx_source import source_of
from torchipu.errors import UnsupportedOpError
from torchipu.fp8.torch_types import NAMES as FLOAT8
from torchipu.ir.types import DType, Source

DTYPES: Mapping[torch.dtype, DType] = {
    torch.float16: DType.HALF, torch.float32: DType.FLOAT, torch.int32: DType.INT, torch.int64: DType.LONG,
    torch.int16: DType.SHORT, torch.int8: DType.CHAR, torch.uint8: DType.UNSIGNED_CHAR, torch.bool: DType.BOOL,
    **dict.fromkeys(FLOAT8, DType.UNSIGNED_CHAR),  # of their bytes; see capture.float8
}
NARROWED: Mapping[torch.dtype, DType] = {torch.float64: DType.FLOAT, torch.bfloat16: DType.FLOAT}
"""Types that the IPU does not have and that float stands in for."""


def refuse_inputs(module: GraphModule, inputs: Sequence[Any] = (), *, is_strict: bool = False) -> None:
    """Raise UnsupportedOpError for an input of a graph of Dynamo's that no program can hold, before it is traced.

    Args:
        module: The graph.
        inputs: What Dynamo traced it for, where it is at hand: its fake values tell of no layout of oneDNN's.
        is_strict: Refuse also what would be held in another type, and so be less exact.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, given in zip_longest(placeholders, inputs[:len(placeholders)]):
        for value in (node.meta.get("example_value"), given):
            if isinstance(value, torch.Tensor):
                if value.dtype.is_complex:  # the graph is one of real and imaginary parts once it is traced
                    _refuse_foreign(value, node)
                else:
                    if is_strict and value.dtype in NARROWED and not _is_number(value):
                        _refuse_narrowed(value.dtype, node)
                    tensor_dtype(value, node)


def _refuse_narrowed(dtype: torch.dtype, node: Node) -> None:
    raise UnsupportedOpError(
        f"strict: {_called(node)} is {dtype}, which the IPU would compute as {NARROWED[dtype].text}",
        op=node.format_node(), source=_line_of(node),
        remedy="convert it with float() or half() before the compiled region, or leave out strict and be warned",
    )


def _is_number(value: object) -> bool:
    """Whether a tensor is a number of Python's, as Dynamo hands it over once it has changed: nothing is told of it."""
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype is torch.float64


def tensor_dtype(value: torch.Tensor, node: Node) -> DType:
    """Return the element type that holds a node's fake value.

    Raises:
        UnsupportedOpError: The IPU holds no such tensor, and nothing stands in for it.
    """
    _refuse_foreign(value, node)
    return dtype_of(value.dtype, node)


def _refuse_foreign(value: torch.Tensor, node: Node) -> None:
    kind, remedy = foreign_kind(value)
    if kind:
        raise UnsupportedOpError(
            f"{_called(node)}: {kind} cannot be held by the IPU", op=node.format_node(), source=_line_of(node),
            remedy=remedy,
        )


def foreign_kind(value: torch.Tensor) -> tuple[str, str]:
    """Return what a tensor is that is no plain dense one, and what to do; empty words for a plain one."""
    if value.is_nested:
        return "nested tensors", "pad to one size with Tensor.to_padded_tensor, and mask what is padding"
    if value.is_quantized:
        return "quantised tensors", "call dequantize() before the compiled region, or keep the weights in float16"
    if value.layout is not torch.strided:
        return f"tensors of layout {value.layout}", "call to_dense() before the compiled region"
    if value.device.type == "meta":
        return "meta tensors, which have no values,", "make it on the CPU, or, for the tensors of a model, call " \
            'Module.to_empty(device="cpu") and load its state_dict'
    if value.device.type != "cpu":
        return f"tensors on {value.device}", "call cpu() before the compiled region"
    return "", ""


def dtype_of(dtype: torch.dtype, node: Node | None = None) -> DType:
    """Return our element type for torch's.

    Raises:
        UnsupportedOpError: The IPU has no such type and nothing stands in for it.
    """
    known = DTYPES.get(dtype)
    if known is not None:
        return known
    stand_in = NARROWED.get(dtype)
    if stand_in is None:
        raise UnsupportedOpError(
            f"{_called(node) if node is not None else 'the op'}: {dtype} has no counterpart on the IPU",
            op=node.format_node() if node is not None else "", source=_line_of(node) if node is not None else "",
            remedy=instead_of(dtype),
        )
    if node is None or not _is_number(node.meta.get("val", node.meta.get("example_value"))):
        _warn_narrowed(dtype, stand_in)
    return stand_in


def has_counterpart(dtype: torch.dtype) -> bool:
    """Return whether the IPU has a type of torch's, or another one that stands in for it."""
    return dtype in DTYPES or dtype in NARROWED


def instead_of(dtype: torch.dtype) -> str:
    """Return what to do instead of using a type that the IPU does not have."""
    if dtype.is_complex:
        return "compute with real and imaginary parts as two real tensors (torch.view_as_real outside the compiled " \
            "region), or leave this call outside of it"
    if dtype in (torch.uint16, torch.uint32, torch.uint64):
        return "use int32 or int64, or uint8 for bytes"
    if dtype.is_floating_point:
        return "use float16 or float32"
    return "use float16, float32, bool or an integer type of at most 64 bits"


def _called(node: Node) -> str:
    """Return what a message calls a node: the op; the parameter, buffer or input by the name that the user gave it."""
    if node.op != "placeholder":
        return str(node.target)
    given = node.meta.get("grapharg")  # of Dynamo's
    place = _PLACE.fullmatch(given.source.name) if given is not None and given.source is not None else None
    if place is None:
        return "input " + re.sub(r"^[lL]_(\w+?)_*$", r"\1", str(node.target))
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", place["path"])
    held = _HELD.fullmatch(path)
    if held is None:
        return f"input {place['name']}{path}"
    return f"{held['kind']} {held['owner']}.{held['name']}".replace(" .", " ")


_PLACE = re.compile(r"[LG]\['(?P<name>\w+)'\](?P<path>.*)")
"""How Dynamo writes where a tensor comes from: a local or global name, and the way from there."""
_HELD = re.compile(r"\.?(?P<owner>.*?)\._(?P<kind>parameter|buffer)s\['(?P<name>[^']*)'\]")


def _line_of(node: Node) -> Source:
    """Return the user's line of a node; of an input the first line that reads it."""
    reader = next(iter(node.users), node) if node.op == "placeholder" else node
    return source_of(reader)


_WARNED: set[torch.dtype] = set()


def _warn_narrowed(dtype: torch.dtype, stand_in: DType) -> None:
    """Warn once a process that a type is computed in another."""
    if dtype in _WARNED:
        return
    _WARNED.add(dtype)
    warnings.warn(
        f"torchipu: {dtype} does not exist on the IPU; it is computed as {stand_in.text} and converted back at the "
        "border of the compiled region", stacklevel=2,
    )
