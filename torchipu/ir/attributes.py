"""What an op says of itself beside its operands, each with its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from torchipu.errors import VerifyError
from torchipu.ir.size import Size

T = TypeVar("T")


class _Absent:
    """Stands for a default that is not given."""


ABSENT = _Absent()


class Attributes:
    """Typed access to ``attrs``.

    Each method takes the name that the argument has in the operator's schema. An attribute that is absent or None is
    its default; without a default that is an error, as is one of another type: ``VerifyError``, naming the operator,
    the attribute and what it is, since capture has let it pass.
    """

    __slots__ = ()
    attrs: Mapping[str, object]
    target: str

    def given(self, name: str) -> bool:
        """Whether an attribute is there and not None."""
        return self.attrs.get(name) is not None

    @overload
    def integer(self, name: str) -> int: ...
    @overload
    def integer(self, name: str, default: int) -> int: ...
    @overload
    def integer(self, name: str, default: None) -> int | None: ...
    def integer(self, name: str, default: int | _Absent | None = ABSENT) -> int | None:
        """Return an integer; a bool counts as 0 or 1."""
        return self._typed(name, default, "an integer", _integer)

    @overload
    def number(self, name: str) -> float: ...
    @overload
    def number(self, name: str, default: float) -> float: ...
    @overload
    def number(self, name: str, default: None) -> float | None: ...
    def number(self, name: str, default: float | _Absent | None = ABSENT) -> float | None:
        """Return an integer or a real number, as it was given."""
        return self._typed(name, default, "a number", _number)

    def flag(self, name: str, default: bool | _Absent = False) -> bool:
        """Return a bool; False by default."""
        return self._typed(name, default, "a bool", _flag)

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: str) -> str: ...
    @overload
    def text(self, name: str, default: None) -> str | None: ...
    def text(self, name: str, default: str | _Absent | None = ABSENT) -> str | None:
        """Return a string."""
        return self._typed(name, default, "a string", lambda value: value if isinstance(value, str) else None)

    def integers(self, name: str, default: tuple[int, ...] | _Absent = ABSENT) -> tuple[int, ...]:
        """Return integers; a single one is a list of one, as in PyTorch's schemas."""
        return self._typed(name, default, "integers", lambda value: _all(value, _integer))

    def numbers(self, name: str, default: tuple[float, ...] | _Absent = ABSENT) -> tuple[float, ...]:
        """Return numbers."""
        return self._typed(name, default, "numbers", lambda value: _all(value, _number))

    def flags(self, name: str, default: tuple[bool, ...] | _Absent = ABSENT) -> tuple[bool, ...]:
        """Return bools."""
        return self._typed(name, default, "bools", lambda value: _all(value, _flag))

    def _typed(self, name: str, default: Any, wanted: str, take: Callable[[object], T | None]) -> Any:
        value = self.attrs.get(name)
        if value is None:
            if default is ABSENT:
                raise VerifyError(f"{self.target}: attribute {name!r} is missing: expected {wanted}")
            return default
        taken = take(value)
        if taken is None:
            raise VerifyError(f"{self.target}: attribute {name!r} must be {wanted}, got {value!r}")
        return taken


def _integer(value: object) -> int | None:
    return value if isinstance(value, (int, Size)) else None  # type: ignore[return-value]


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float, Size)) else None  # type: ignore[return-value]


def _flag(value: object) -> bool | None:
    return bool(value) if isinstance(value, int) else None


def _all(value: object, take: Callable[[object], T | None]) -> tuple[T, ...] | None:
    members = value if isinstance(value, (list, tuple)) else [value]
    taken = [member for member in map(take, members) if member is not None]
    return tuple(taken) if len(taken) == len(members) else None
