"""Results of a model in which the tensors of a call cannot take the place of those of its capture."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import ItemsView, Iterator, Mapping, Set, ValuesView
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from torchipu.poptorch.arguments import structure
from torchipu.poptorch.poptorch_core import createPoptorchError

_MOST_MEMBERS = 10_000
"""Of large objects, such as tables of the program's own, no more are looked through."""


def refuse_hidden(returned: Any) -> None:
    """Refuse results that hold tensors of the capture where nobody finds them: every call would return these.

    Args:
        returned: What forward returned while it was captured.

    Raises:
        Error: It returns an iterator, a set of tensors, a function that was made with tensors, or an object of a class
            that nothing is known of that holds tensors, itself or deeper down.
    """
    for leaf in _leaves(returned):
        if isinstance(leaf, Iterator):
            _refuse(leaf, "which a call could not go through again", "return a list of its elements")
        if isinstance(leaf, Set) and any(map(_is_of_capture, leaf)):
            _refuse(leaf, "whose tensors have no order", "return a list or a tuple of them")
        if callable(leaf) and _holds_any(leaf):
            _refuse(leaf, "which computes with tensors of the capture", "return what it computes")
        if _holds_any(leaf):
            _refuse(
                leaf, "of whose tensors PopTorch does not know", "return them in a tuple, a list or a dict, or let a "
                "parser tell of the class, by poptorch.registerCustomArgParser",
            )


def _refuse(leaf: Any, what: str, remedy: str) -> None:
    raise createPoptorchError(f"forward returns an object of type {type(leaf).__name__}, {what}: {remedy}")


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what is no tensor, and is taken as it is."""
    if isinstance(value, torch.Tensor) or structure.parser_of(value) is not None:
        return
    if isinstance(value, (tuple, list)):
        for member in value:
            yield from _leaves(member)
    elif isinstance(value, dict):
        for member in value.values():
            yield from _leaves(member)
    else:
        yield value


def _holds_any(value: Any) -> bool:
    """Whether an object, or one that it is made of, holds a tensor of the capture."""
    seen, left = set[int](), list(_members(value))
    while left and len(seen) < _MOST_MEMBERS:
        member = left.pop()
        if _is_of_capture(member):
            return True
        if id(member) not in seen:
            seen.add(id(member))
            left += _members(member)
    return False


def _members(value: Any) -> Iterator[Any]:
    """Yield what an object holds: members of a container, attributes, what a function was made with."""
    if isinstance(value, (type, ModuleType, torch.nn.Module, torch.Tensor, str, bytes)):
        return
    if isinstance(value, (Mapping, ValuesView, ItemsView)):
        yield from value.values() if isinstance(value, Mapping) else value
    elif isinstance(value, (tuple, list, deque, Set)):
        yield from value
    yield from getattr(value, "__dict__", {}).values()
    for name in _slots(type(value)):
        yield getattr(value, name, None)
    if isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, FunctionType):
        yield from value.__defaults__ or ()
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # nothing was put into it
                yield cell.cell_contents


def _slots(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        own = each.__dict__.get("__slots__", ())
        yield from (own,) if isinstance(own, str) else own


def _is_of_capture(value: Any) -> bool:
    return isinstance(value, (FunctionalTensor, FakeTensor))
