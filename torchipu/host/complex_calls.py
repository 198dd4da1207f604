"""Operators of ATen on complex numbers that lie as pairs of floats, for the generic codelet.

Each has an operator of its own, whose name says all: which operator it calls, and which of the tensors that it takes
and gives are complex. So a program that was saved finds it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, library
from torch.utils import _pytree as pytree

PREFIX = "complex_"
_NAME = re.compile(rf"{PREFIX}(?P<name>\w+?)__(?P<overload>[A-Za-z]\w*?)__(?P<taken>[cr]*)__(?P<given>[cr]*)")
_ALIAS = re.compile(r"(?<=Tensor)\([a-z][^)]*\)")


def name_of(overload: torch._ops.OpOverload, taken: Sequence[bool], given: Sequence[bool]) -> str:
    """Return the name of the operator on pairs.

    Args:
        overload: Of ATen.
        taken: Which of its tensors are complex, in the order of the schema.
        given: Which of its results are.
    """
    variant = overload._overloadname
    return f"{PREFIX}{overload._schema.name.removeprefix('aten::')}__{variant}__{_word(taken)}__{_word(given)}"


def _word(are_complex: Sequence[bool]) -> str:
    return "".join("c" if one else "r" for one in are_complex)


@cache
def operator(name: str) -> torch._ops.OpOverload:
    """Return the operator on pairs, defined by its name."""
    schema = _ALIAS.sub("", str(_overload(name)._schema))
    library.define(f"torchipu::{name}", schema[schema.index("(") :])
    library.impl(f"torchipu::{name}", "CompositeExplicitAutograd", function(name))
    library.register_fake(f"torchipu::{name}", function(name))
    return getattr(getattr(torch.ops.torchipu, name), "default")  # noqa: B009


@cache
def function(name: str) -> Callable[..., Any]:
    """Return what the operator does.

    To be called as it is where values matter: within an operator, what ATen calls finds no conjugation that is left to
    the reader.
    """
    overload, parts = _overload(name), _parts(name)

    def call(*args: Any, **kwargs: Any) -> Any:
        marks, kinds = iter(parts["taken"]), iter(parts["given"])
        args, kwargs = pytree.tree_map_only(Tensor, lambda leaf: _given(leaf, marks), (args, kwargs))
        return pytree.tree_map_only(Tensor, lambda leaf: _returned(leaf, next(kinds)), overload(*args, **kwargs))

    return call


def _overload(name: str) -> torch._ops.OpOverload:
    parts = _parts(name)
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, parts["name"]), parts["overload"])
    return found


def _parts(name: str) -> re.Match[str]:
    parts = _NAME.fullmatch(name)
    assert parts is not None, name
    return parts


def _given(leaf: Tensor, marks: Iterator[str]) -> Tensor:
    if next(marks) == "r":
        return leaf
    wide = leaf.float() if leaf.dtype == torch.float16 else leaf  # ATen has next to nothing for complex halves
    return torch.view_as_complex(wide.contiguous())


def _returned(leaf: Tensor, kind: str) -> Tensor:
    """Return a result in memory of its own, as a result of an operator has to lie."""
    pairs = torch.view_as_real(leaf.resolve_conj().resolve_neg()) if kind == "c" else leaf
    return pairs.clone(memory_format=torch.contiguous_format)
