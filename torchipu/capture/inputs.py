"""Arguments and parameters that no program can hold, told before the model is traced."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu.capture.fx_types import foreign_kind
from torchipu.capture.tensor_classes import computes_by_itself, plain
from torchipu.errors import CaptureError, UnsupportedOpError, nearest
from torchipu.ir.types import UNKNOWN_SOURCE, Source

_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
"""Where torch keeps modules that hold weights as objects of C++, whose elements are no tensor's."""
_OF_PROCESSES = ("torch.nn.parallel.distributed", "torch.distributed.fsdp")
"""Where torch keeps modules that exchange gradients or weights between processes."""


def _foreign_module(member: torch.nn.Module) -> tuple[str, str]:
    """Return what a module has that no program can hold, and a remedy; two empty strings for most."""
    defined_in = type(member).__module__
    if defined_in.startswith(_QUANTIZED):
        return "has quantized weights", (
            "give the model as it was before it was quantized; float16 takes half of float32's memory"
        )
    if defined_in.startswith(_OF_PROCESSES):
        return "exchanges tensors between processes by hooks", (
            "give the step the module within it: steps of several processes add their gradients up themselves "
            "(docs/distributed.md)"
        )
    if isinstance(member, torch.jit.ScriptModule):
        return "is a program of TorchScript's", "give the torch.nn.Module that it was made of"
    held = (*member.parameters(recurse=False), *member.buffers(recurse=False))
    if any(map(torch.nn.parameter.is_lazy, held)):
        return "has weights whose sizes its first call decides", "call the model once, before the optimiser is made"
    return "", ""


def refuse_foreign(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise UnsupportedOpError for a tensor that is not plain and dense, and for a module that holds its own kind.

    Dynamo stops at such tensors with words of its own, which suit a compiled function and not a whole program. Element
    types are left to the graph, which knows the line that reads them.

    Args:
        module: The model.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    for name, member in module.named_modules():
        what, remedy = _foreign_module(member)
        if what:
            where = f"module {name}" if name else "the model"
            raise UnsupportedOpError(
                f"{where}: {type(member).__name__} {what}, which the IPU cannot hold", source=_forward_line(module),
                remedy=remedy,
            )
    for what, value in _named(module, args, kwargs):
        kind, remedy = foreign_kind(plain(value))
        if not kind and what.startswith("input ") and computes_by_itself(value):
            kind = f"tensors of {type(value).__name__}, which computes in its own __torch_dispatch__,"
            remedy = "pass a plain torch.Tensor with the same values, or the plain ones that it is made of"
        if kind:
            raise UnsupportedOpError(
                f"{what}: {kind} cannot be held by the IPU", source=_forward_line(module), remedy=remedy,
            )


def refuse_unknown_names(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> None:
    """Raise CaptureError for a keyword that forward does not take.

    Whoever binds arguments tells first of one that is missing, which the wrong keyword may have been meant for.

    Args:
        module: The model.
        kwargs: Keyword arguments of a call.
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # nobody knows what it takes
        return
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for name in kwargs:
        if name not in names:
            raise CaptureError(
                "the model cannot be called with these arguments: got an unexpected keyword argument "
                f"{name!r}{nearest(name, names)}", source=_forward_line(module),
                remedy=f"pass what its forward takes, by place or by name: {', '.join(names)}",
            )


def _named(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of a call with what the user calls it."""
    try:
        given: Mapping[str, Any] = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a wrong call: the error of the call itself says more
        given = {"args": args, **kwargs}
    for name, value in given.items():
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, torch.Tensor):
                yield f"input {name}{pytree.keystr(path)}", leaf
    for name, parameter in module.named_parameters():
        yield f"parameter {name}", parameter
    for name, buffer in module.named_buffers():
        yield f"buffer {name}", buffer


def _forward_line(module: torch.nn.Module) -> Source:
    """Return the line where the module's forward begins."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is None:
        return UNKNOWN_SOURCE
    text = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return Source(code.co_filename, code.co_firstlineno, text)
