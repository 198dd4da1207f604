"""A number that remembers how it was computed, and tells whoever decides by it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Protocol


class Origin(Protocol):
    """What a size belongs to: it knows what it is at present, computes with it, and notes what is decided by it."""

    now: list[Any]
    equal: dict[tuple[int, int], bool]
    less: dict[tuple[int, int], bool]
    at_most: dict[tuple[int, int], bool]

    def computed(self, operation: str, left: Any, right: Any) -> Any:
        """Return what an operation gives."""

    def decided(self, comparison: str, left: Any, right: Any) -> Any:
        """Return how a comparison goes."""

    def called(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Return what a function of numbers gives."""

    def elsewhere(self) -> tuple[list[Any], ...]:
        """Return what all numbers are for other sizes."""

    def nearby(self) -> tuple[list[Any], ...]:
        """Return what all numbers are for sizes somewhat less and larger."""

    def text(self, size: Size) -> str:
        """Return how a number is computed."""


class Size:
    """A number of a `Sizes`; compared and computed with like an int.

    Planning asks for the same sums and products thousands of times: they are known here, by the other operand.

    Args:
        sizes: What it belongs to.
        place: Its place there.

    Attributes:
        mark: Stands for it where results are known by the other operand, unlike any number.
        sums: By what is added.
        differences: By what is subtracted.
        products: By the other factor.
        quotients: By a whole number that divides it.
    """

    __slots__ = ("differences", "mark", "place", "products", "quotients", "sizes", "sums")

    def __init__(self, sizes: Origin, place: int) -> None:
        self.sizes = sizes
        self.place = place
        self.mark = object()
        self.sums: dict[object, Any] = {}
        self.differences: dict[object, Any] = {}
        self.products: dict[object, Any] = {}
        self.quotients: dict[object, Any] = {}

    @property
    def now(self) -> Any:
        """What it is at present; whoever decides by it notes a guard."""
        return self.sizes.now[self.place]

    # ------------------------------------------------------------------ arithmetic
    def __add__(self, other: object) -> Any:
        key = other if type(other) is int else other.mark if type(other) is Size else None
        known = self.sums.get(key)
        return self._noted_in(self.sums, key, "+", other) if known is None else known

    def __radd__(self, other: object) -> Any:
        return self + other

    def __sub__(self, other: object) -> Any:
        key = other if type(other) is int else other.mark if type(other) is Size else None
        known = self.differences.get(key)
        return self._noted_in(self.differences, key, "-", other) if known is None else known

    def __rsub__(self, other: object) -> Any:
        return self.sizes.computed("-", other, self)

    def __mul__(self, other: object) -> Any:
        key = other if type(other) is int else other.mark if type(other) is Size else None
        known = self.products.get(key)
        return self._noted_in(self.products, key, "*", other) if known is None else known

    def __rmul__(self, other: object) -> Any:
        return self * other

    def __floordiv__(self, other: object) -> Any:
        # Whether a size that divides is 0 is asked each time.
        known = self.quotients.get(other) if type(other) is int else None
        key = other if type(other) is int else None
        return self._noted_in(self.quotients, key, "//", other) if known is None else known

    def __rfloordiv__(self, other: object) -> Any:
        return self.sizes.computed("//", other, self)

    def __mod__(self, other: object) -> Any:
        return self.sizes.computed("%", self, other)

    def __rmod__(self, other: object) -> Any:
        return self.sizes.computed("%", other, self)

    def __neg__(self) -> Any:
        return self.sizes.computed("-", 0, self)

    def __truediv__(self, other: object) -> Any:
        return self.sizes.computed("/", self, other)

    def __rtruediv__(self, other: object) -> Any:
        return self.sizes.computed("/", other, self)

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __round__(self) -> Any:
        return self.sizes.computed("rounded", self, 1)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __pow__(self, other: Any) -> Any:
        return int(self) ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** int(self)

    def _noted_in(self, known: dict[object, Any], key: object, operation: str, other: object) -> Any:
        """Compute what is not known yet, and keep it where the other operand has a key."""
        found = self.sizes.computed(operation, self, other)
        if key is not None:
            known[key] = found
        return found

    # ------------------------------------------------------------------ decisions
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        outcome = self.sizes.equal.get((self.place, other)) if type(other) is int else None
        return self.sizes.decided("==", self, other) if outcome is None else outcome

    def __ne__(self, other: object) -> bool:
        if self is other:
            return False
        outcome = self.sizes.equal.get((self.place, other)) if type(other) is int else None
        return not (self == other if outcome is None else outcome)

    def __lt__(self, other: object) -> bool:
        outcome = self.sizes.less.get((self.place, other)) if type(other) is int else None
        return self.sizes.decided("<", self, other) if outcome is None else outcome

    def __le__(self, other: object) -> bool:
        outcome = self.sizes.at_most.get((self.place, other)) if type(other) is int else None
        return self.sizes.decided("<=", self, other) if outcome is None else outcome

    def __gt__(self, other: object) -> bool:
        return not self <= other

    def __ge__(self, other: object) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        """By how it was computed: numbers that only happen to be equal are different keys."""
        return hash((id(self.sizes), self.place))

    def __index__(self) -> int:
        return operator.index(self._noted())

    def __int__(self) -> int:
        return int(self._noted())

    def __float__(self) -> float:
        return float(self._noted())

    def _noted(self) -> Any:
        """Return what it is at present, which whoever asks rests on."""
        now = self.now
        self.sizes.decided("==", self, now)
        return now

    def __repr__(self) -> str:
        return self.sizes.text(self)
