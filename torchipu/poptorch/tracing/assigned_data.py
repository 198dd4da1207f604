"""Assignments of the kind ``weight.data = value`` in forward: the tensor holds the value from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from torchipu.poptorch.poptorch_core import createPoptorchError


def assigned(function: Callable[..., Any], args: tuple[Any, ...], is_view: Callable[[torch.Tensor], bool]) -> Any:
    """Assign the data of a captured tensor, or return NotImplemented for any other call.

    In eager PyTorch the tensor gets the memory of the value. In a program each tensor keeps its own, which the value is
    written into; that is the same unless others share the memory.

    Args:
        function: What is called.
        args: Its arguments.
        is_view: Whether a tensor is part of another one.

    Raises:
        Error: The tensor is a view, or the value has another shape or type.
    """
    if getattr(function, "__name__", "") != "__set__" or getattr(function, "__self__", None) is not torch.Tensor.data:
        return NotImplemented
    target, value = args
    if not isinstance(target, FunctionalTensor):
        return NotImplemented
    for told, has, given in (("shape", target.shape, value.shape), ("type", target.dtype, value.dtype)):
        if has != given:
            raise createPoptorchError(
                f"tensor.data = value in forward keeps the {told} of the tensor, which is {has}, but the value has "
                f"{given}. Bind the value to a name of its own instead."
            )
    if target._base is not None or is_view(target):
        raise createPoptorchError(
            "tensor.data = value is not supported in forward for a view of another tensor, which it would leave: "
            "use tensor.copy_(value) to write into both, or bind the value to a name of its own."
        )
    target.data.copy_(value)
    return None
