"""Inputs of classes of tensors that users derive from ``torch.Tensor``.

Dynamo knows them, and follows what their ``__torch_function__`` does; a program reads their memory, as that of any
tensor, and gives plain ones. A class that computes in its own ``__torch_dispatch__`` need not have memory, and is
refused.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch._dynamo.utils
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from torchipu.capture.process_wide import replaced

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_OF_TORCH = (FakeTensor, FunctionalTensor)
"""What torch itself puts in place of tensors while it follows a model."""
CONSTANTS = (bool, int, float, complex, str, bytes, type(None))
"""Attributes that are compared by value, and others by identity."""


def computes_by_itself(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a user's class that stands below the operators of torch."""
    is_usual = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return not is_usual and not isinstance(tensor, _OF_TORCH)


def is_derived(value: Any) -> bool:
    """Whether a value is a tensor of a user's class that has memory as any other."""
    kind = type(value)
    return (
        kind not in _PLAIN and isinstance(value, torch.Tensor)
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )


def overrides_functions(value: Any) -> bool:
    """Whether a value is of a user's class that says by itself what functions of torch do with it."""
    if not is_derived(value):
        return False
    function = type(value).__torch_function__
    usual = torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]
    return getattr(function, "__func__", function) not in usual


def plain(value: Any) -> Any:
    """Return a tensor of a user's class as a plain one, in the same memory; anything else as it is."""
    if not is_derived(value):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


def all_plain(values: Any) -> Any:
    """Return nested values with plain tensors in place of those of users' classes."""
    return pytree.tree_map_only(torch.Tensor, plain, values)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its history, of the same class, with the same attributes."""
    if not is_derived(tensor):
        return tensor.detach()
    return _like(plain(tensor).detach(), tensor)


def first_of(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return so many elements along dimension 0, of the same class, with the same attributes."""
    return _like(plain(tensor)[:count], tensor) if is_derived(tensor) else tensor[:count]


def _like(made: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        derived = made.as_subclass(type(tensor))
    vars(derived).update(vars(tensor))
    return derived


def results_plain() -> contextlib.AbstractContextManager[None]:
    """Let what Dynamo has captured return plain tensors: it would make them of the class that eager gives."""
    return replaced(torch._dynamo.utils, "to_subclass", lambda tensor, kind: tensor)


def told(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what a program depends on of an input: size and type, and of a user's class that and its attributes."""
    if not is_derived(tensor):
        return tensor.shape, tensor.dtype
    attributes = [
        (name, type(value), value if type(value) in CONSTANTS else id(value))
        for name, value in vars(tensor).items()
    ]
    as_memory = plain(tensor)
    return as_memory.shape, as_memory.dtype, type(tensor), *attributes
