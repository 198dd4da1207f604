"""Descriptions of objects are equal where the objects do the same, differ where they may not, and refuse the rest."""

from __future__ import annotations

import collections
import enum
import functools
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchipu.cache.described import MAX_DEPTH, Describer, OpaqueError


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


class Counted(int):
    """A number with a class of its own."""


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self, left: object) -> None:
        self.left = left


class Bare:
    """Has no place for anything."""

    __slots__ = ()


class Held:
    """Holds something under a name."""

    def __init__(self, value: object) -> None:
        self.value = value

    def get(self) -> object:
        return self.value

    def got(self, other: object) -> object:
        return other


def first(x: int, y: int = 0) -> int:
    return x + y


def second(x: int, y: int = 0) -> int:
    return x - y


def tensor_with(value: object) -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.note = value  # type: ignore[attr-defined]
    return tensor


def unbound() -> Callable[[], int]:
    if False:
        late = 1

    def inner() -> int:
        return late

    return inner


PAIRS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "types of elements": (lambda: torch.float32, lambda: torch.float64),
    "sizes": (lambda: torch.Size([1, 2]), lambda: torch.Size([2, 1])),
    "members of an enumeration": (lambda: Side.LEFT, lambda: Side.RIGHT),
    "modules": (lambda: math, lambda: torch),
    "code": (lambda: first.__code__, lambda: second.__code__),
    "methods": (lambda: Held(1).get, lambda: Held(1).got),
    "objects of methods": (lambda: Held(1).get, lambda: Held(2).get),
    "built-in functions": (lambda: math.sin, lambda: math.cos),
    "built-in methods": (lambda: str.upper, lambda: str.lower),
    "static methods": (lambda: staticmethod(first), lambda: staticmethod(second)),
    "properties": (lambda: property(first), lambda: property(second)),
    "setters of properties": (lambda: property(first, second), lambda: property(first, first)),
    "cached properties": (lambda: functools.cached_property(first), lambda: functools.cached_property(second)),
    "arguments of partials": (lambda: functools.partial(first, 1), lambda: functools.partial(first, 2)),
    "keywords of partials": (lambda: functools.partial(first, y=1), lambda: functools.partial(first, y=2)),
    "views of tables": (lambda: types.MappingProxyType({"a": 1}), lambda: types.MappingProxyType({"a": 2})),
    "cells": (lambda: types.CellType(1), lambda: types.CellType(2)),
    "types of members": (lambda: list[int], lambda: list[str]),
    "choices of types": (lambda: int | str, lambda: int | None),
    "operators": (lambda: torch.ops.aten.add.Tensor, lambda: torch.ops.aten.add.Scalar),
    "queues": (lambda: collections.deque([1, 2]), lambda: collections.deque([2, 1])),
    "lists and tuples": (lambda: [1, 2], lambda: (1, 2)),
    "order of tables": (
        lambda: collections.OrderedDict(a=1, b=2), lambda: collections.OrderedDict([("b", 2), ("a", 1)]),
    ),
    "sets": (lambda: {1, 2}, lambda: {1, 3}),
    "numbers of a class": (lambda: Counted(1), lambda: Counted(2)),
    "numbers and those of a class": (lambda: 1, lambda: Counted(1)),
    "numbers that are equal": (lambda: 1, lambda: True),
    "slots": (lambda: Slotted(1), lambda: Slotted(2)),
    "attributes of a tensor": (lambda: tensor_with(1), lambda: tensor_with(2)),
    "values of a tensor": (lambda: torch.tensor([1.0]), lambda: torch.tensor([-1.0])),
    "strides of a tensor": (lambda: torch.ones(2, 2), lambda: torch.ones(2, 2).t()[:, :2].contiguous().as_strided(
        (2, 2), (1, 2))),
    "what functions close over": (lambda: (lambda one: lambda: one)(1), lambda: (lambda one: lambda: one)(2)),
    "names that are not bound": (unbound, lambda: first),
}


@pytest.mark.parametrize("what", PAIRS)
def test_what_differs_is_described_otherwise_and_what_is_equal_alike(what: str) -> None:
    make, other = PAIRS[what]
    assert Describer().deep(make()) == Describer().deep(make())
    assert Describer().deep(make()) != Describer().deep(other())


def test_objects_that_are_shared_are_told_from_equal_ones() -> None:
    one, other = [1], [1]
    assert Describer().deep([one, one]) != Describer().deep([one, other])


def body_of(value: object) -> type:
    """Return a class in which something is written; its name is always the same."""

    class Body:
        written = value

    return Body


def closing_over(function: Callable[..., object]) -> Callable[[], object]:
    def outer() -> object:
        return function(1)

    return outer


def calling_itself(step: int) -> Callable[[int], int]:
    if step == 1:
        def count(left: int) -> int:
            return count(left - 1) if left else 0
    else:
        def count(left: int) -> int:
            return count(left - 2) if left > 1 else 0
    return count


WRITTEN: dict[str, tuple[object, object]] = {
    "constants": (1, 2),
    "functions": (first, second),
    "static methods": (staticmethod(first), staticmethod(second)),
    "class methods": (classmethod(first), classmethod(second)),
    "properties": (property(first), property(second)),
    "setters": (property(first, first), property(first, second)),
    "cached properties": (functools.cached_property(first), functools.cached_property(second)),
    "what a decorator has wrapped": (closing_over(first), closing_over(second)),
    "functions that call themselves": (calling_itself(1), calling_itself(2)),
    "defaults": (types.FunctionType(first.__code__, {}, "first", (1,)),
                 types.FunctionType(first.__code__, {}, "first", (2,))),
    "classes of others": ([1], (1,)),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_classes_are_told_by_what_is_written_in_them(what: str) -> None:
    value, other = WRITTEN[what]
    assert Describer().of_class(body_of(value)) == Describer().of_class(body_of(value))
    assert Describer().of_class(body_of(value)) != Describer().of_class(body_of(other))


def test_functions_in_classes_may_close_over_what_is_not_bound_yet() -> None:
    assert Describer().of_class(body_of(unbound())) == Describer().of_class(body_of(unbound()))


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


OPAQUE: dict[str, Callable[[], object]] = {
    "an iterator": lambda: iter([1]),
    "an object of no attributes": object,
    "an object that can have none": Bare,
    "a method of a list": lambda: [1].append,
    "a tensor without values": lambda: torch.ones(2, device="meta"),
    "what holds one": lambda: {"a": [iter([1])]},
    "what is nested too deeply": lambda: nested(MAX_DEPTH + 1),
}


@pytest.mark.parametrize("what", OPAQUE)
def test_what_cannot_be_told_from_another_is_refused(what: str) -> None:
    with pytest.raises(OpaqueError):
        Describer().deep(OPAQUE[what]())


def test_what_is_nested_as_deeply_as_may_be_is_described() -> None:
    assert Describer().deep(nested(MAX_DEPTH - 1))


def test_a_tensor_that_the_program_reads_is_told_by_its_layout_alone() -> None:
    one, other = torch.zeros(2), torch.ones(2)
    assert Describer([one]).deep(one) == Describer([other]).deep(other)
    assert Describer([one]).deep(other) != Describer([other]).deep(other)


SEEN: dict[str, tuple[object, object, object]] = {
    "constants": (1, 1, 2),
    "types of elements": (torch.float32, torch.float32, torch.float64),
    "modules": (math, math, torch),
    "functions": (first, first, second),
    "keys of tables": ({"a": 1}, {"a": 2}, {"b": 1}),
    "members of lists": ([1, "a"], [1, "a"], [1, "b"]),
    "members of sets": ({1, 2}, {2, 1}, {1, 3}),
    "names of attributes": (Held(1), Held(2), Slotted(1)),
}


@pytest.mark.parametrize("what", SEEN)
def test_from_outside_only_what_is_seen_there_counts(what: str) -> None:
    value, alike, other = SEEN[what]
    assert Describer().shallow(value) == Describer().shallow(alike) != Describer().shallow(other)
