"""Which integers of a run differ by constants: each is a sum of others, times constants, and a constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

Tensor = torch.Tensor
SUMS: frozenset[Any] = frozenset({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__})
DIFFERENCES: frozenset[Any] = frozenset({torch.sub, Tensor.sub, Tensor.__sub__, Tensor.sub_, Tensor.__isub__})
REVERSED: frozenset[Any] = frozenset({Tensor.__rsub__, torch.rsub})
PRODUCTS: frozenset[Any] = frozenset({
    torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_, Tensor.__imul__,
})
NEGATIONS: frozenset[Any] = frozenset({torch.neg, Tensor.neg, Tensor.__neg__, Tensor.neg_})
MOVES: frozenset[Any] = frozenset({
    Tensor.clone, torch.clone, Tensor.detach, Tensor.contiguous, Tensor.int, Tensor.long, Tensor.to, Tensor.view,
    Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten, Tensor.squeeze, torch.squeeze, Tensor.unsqueeze,
    torch.unsqueeze, Tensor.__getitem__,
})
"""What leaves a single integer the one that it is."""
WRITING = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__ifloordiv__", "__imod__", "__iand__", "__ior__")


@dataclass(frozen=True, slots=True)
class LinearForm:
    """An integer that only the program knows.

    Attributes:
        factors: By the number of each integer that it is made of, how often that is in it; none is 0.
        more: What it is more than their sum.
    """

    factors: Mapping[int, int] = field(default_factory=dict)
    more: int = 0

    def plus(self, other: LinearForm, times: int = 1) -> LinearForm:
        """Return the sum of this and another one ``times`` over."""
        total = dict(self.factors)
        for number, factor in other.factors.items():
            total[number] = total.get(number, 0) + times * factor
        left = {number: factor for number, factor in total.items() if factor}
        return LinearForm(left, self.more + times * other.more)


class KnownDifferences:
    """Notes what a run makes of its integers."""

    def __init__(self) -> None:
        self._forms: dict[int, LinearForm] = {}  # by the id of a tensor
        self._kept: dict[int, Tensor] = {}  # so that its id is not given to another
        self._next = 0

    def note(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note what a call makes of integers."""
        form = None if kwargs or not args else self._made(function, args)
        if _is_in_place(function) and args and isinstance(args[0], Tensor):
            self._forget(args[0])
        if form is not None and is_index(result):
            self._keep(result, form)

    def between(self, start: Tensor, stop: Tensor) -> int | None:
        """Return how much greater the second integer is, or None if only the program knows."""
        difference = self._of(stop).plus(self._of(start), -1)
        return None if difference.factors else difference.more

    def _made(self, function: Callable[..., Any], args: tuple[Any, ...]) -> LinearForm | None:
        if function in MOVES:
            return self._of(args[0]) if is_index(args[0]) else None
        first = self._operand(args[0])
        if first is not None and function in NEGATIONS:
            return LinearForm().plus(first, -1)
        second = self._operand(args[1]) if len(args) == 2 else None
        if first is None or second is None:
            return None
        if function in SUMS:
            return first.plus(second)
        if function in DIFFERENCES:
            return first.plus(second, -1)
        if function in REVERSED:
            return second.plus(first, -1)
        return _product(first, second) if function in PRODUCTS else None

    def _operand(self, value: Any) -> LinearForm | None:
        if type(value) is int:
            return LinearForm(more=value)
        return self._of(value) if is_index(value) else None

    def _of(self, tensor: Tensor) -> LinearForm:
        if id(tensor) not in self._forms:
            self._renew(tensor)
        return self._forms[id(tensor)]

    def _forget(self, written: Tensor) -> None:
        """What shares memory with a tensor that was written is another integer now."""
        for tensor in [*self._kept.values()]:
            if torch._C._is_alias_of(tensor, written):  # type: ignore[attr-defined]
                self._renew(tensor)

    def _renew(self, tensor: Tensor) -> None:
        self._next += 1
        self._keep(tensor, LinearForm({self._next: 1}))

    def _keep(self, tensor: Tensor, form: LinearForm) -> None:
        self._forms[id(tensor)] = form
        self._kept[id(tensor)] = tensor


def _product(first: LinearForm, second: LinearForm) -> LinearForm | None:
    if first.factors and second.factors:
        return None
    constant, other = (first, second) if second.factors else (second, first)
    return LinearForm().plus(other, constant.more)


def is_index(value: Any) -> TypeGuard[Tensor]:
    """Whether something is a tensor of a single integer."""
    return (
        isinstance(value, Tensor) and value.numel() == 1
        and not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    )


def _is_in_place(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in WRITING
