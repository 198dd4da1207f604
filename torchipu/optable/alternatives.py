"""Of what a plan has one, as sizes decide: both are there until these are known, and a number that chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torchipu.ir.size import Size
from torchipu.ir.sizes import of_numbers
from torchipu.optable.host_tensor import HostTensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Either:
    """One of two values.

    Attributes:
        flag: A number that is computed of sizes: 0 for the second.
        first: Any value.
        second: Any value.
    """

    flag: Any
    first: Any
    second: Any

    @staticmethod
    def settled(flag: Any, first: Any, second: Any) -> Any:
        """Return the value for a plain number."""
        return first if flag else second


@dataclass(frozen=True, slots=True)
class EitherTensor(HostTensor):
    """A value, or another place of the same or of what becomes it; who asks before sizes are known sees the value.

    Attributes:
        flag: A number that is computed of sizes: 0 for the value itself.
        other: Memory that nothing knows but the steps that are given this.
    """

    flag: Any
    other: HostTensor

    @property
    def itself(self) -> HostTensor:
        """The value."""
        return HostTensor(self.buffer, self.offset, self.shape, self.strides, self.dtype)

    @staticmethod
    def settled(
        buffer: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, flag: Any,
        other: HostTensor,
    ) -> HostTensor:
        """Return the one for a plain number."""
        return other if flag else HostTensor(buffer, offset, shape, strides, dtype)


@of_numbers
def _one_of(flag: Any, first: Any, second: Any) -> Any:
    return first if flag else second


def number_of(flag: Any, first: Any, second: Any) -> Any:
    """Return one of two numbers, the second where a flag is 0; nothing is decided where sizes decide that."""
    if type(flag) is not Size:
        return first if flag else second
    return first if first is second else _one_of(flag, first, second)


def numbers_of(flag: Any, first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one of two tuples of as many numbers, likewise."""
    return tuple(number_of(flag, one, other) for one, other in zip(first, second, strict=True))


def chosen(flag: Any, first: T, second: T) -> T:
    """Return one of two values, the second where a flag is 0; both, to be chosen from, where sizes decide the flag."""
    if type(flag) is not Size:
        return first if flag else second
    return cast("T", Either(flag, first, second))


def other_or(flag: Any, other: HostTensor, held: HostTensor) -> HostTensor:
    """Return another place instead of that of a value where a flag is not 0; both, where sizes decide the flag.

    Args:
        flag: A bool, or a number that is computed of sizes.
        other: Memory that nothing else knows, as of a packed copy.
        held: The value.
    """
    if type(flag) is not Size:
        return other if flag else held
    return EitherTensor(held.buffer, held.offset, held.shape, held.strides, held.dtype, flag, other)
