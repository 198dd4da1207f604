"""Results of a model in which the tensors of a call cannot take the place of those of its capture."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from torchipu.poptorch.arguments import structure
from torchipu.poptorch.poptorch_core import createPoptorchError


def refuse_hidden(returned: Any) -> None:
    """Refuse results that hold tensors of the capture where nobody finds them: every call would return these.

    Args:
        returned: What forward returned while it was captured.

    Raises:
        Error: It returns an iterator, a set of tensors, or an object of a class that nothing is known of with tensors.
    """
    for leaf in _leaves(returned):
        if isinstance(leaf, Iterator):
            _refuse(leaf, "which a call could not go through again", "return a list of its elements")
        if isinstance(leaf, Set) and any(map(_is_of_capture, leaf)):
            _refuse(leaf, "whose tensors have no order", "return a list or a tuple of them")
        if any(map(_is_of_capture, _members(leaf))):
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


def _members(value: Any) -> Iterator[Any]:
    """Yield the attributes of an object, and what lies in lists, tuples and dicts among them."""
    if isinstance(value, (type, torch.nn.Module)):
        return
    for member in getattr(value, "__dict__", {}).values():
        if isinstance(member, (tuple, list)):
            yield from member
        elif isinstance(member, dict):
            yield from member.values()
        else:
            yield member


def _is_of_capture(value: Any) -> bool:
    return isinstance(value, (FunctionalTensor, FakeTensor))
