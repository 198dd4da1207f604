"""Sequences whose members are made when they are looked at: a report has more of them than anybody reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Lazy(Sequence[T], Generic[T]):
    """A sequence of a known length whose members are made at each look.

    Args:
        length: Of it.
        make: Gives the member of a place.
    """

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length = length
        self._make = make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...

    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return [self._make(one) for one in range(*place.indices(self._length))]
        at = place + self._length if place < 0 else place
        if not 0 <= at < self._length:
            raise IndexError(f"place {place} of a list of {self._length}")
        return self._make(at)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._length))

    def __repr__(self) -> str:
        return shown(self)


_PRINTED = [10]
"""How many members of a list are printed, of any report."""


def print_length(length: int) -> None:
    """Let lists print so many of their members.

    Raises:
        ValueError: It is less than 0.
    """
    if length < 0:
        raise ValueError(f"a list cannot print {length} members: give 0 or more")
    _PRINTED[0] = length


def shown(members: Sequence[object]) -> str:
    """Return the first members of a list as text, and how many there are."""
    first = ", ".join(repr(members[place]) for place in range(min(_PRINTED[0], len(members))))
    rest = len(members) - _PRINTED[0]
    return f"[{first}{', ' if first and rest > 0 else ''}{f'... {rest} more' if rest > 0 else ''}]"
