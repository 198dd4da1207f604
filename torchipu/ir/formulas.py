"""How numbers are computed of sizes: the operations, what tells one formula from another, and their Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from torchipu.ir.size import Size


def _power(base: Any, exponent: Any) -> Any:
    """Return a power, or 0 where it is none, as a negative one of 0: before the first call, sizes are 0."""
    try:
        return base**exponent
    except ZeroDivisionError:
        return 0


def _whole(how: Callable[[Any], int]) -> Callable[[Any, int], int]:
    """Return what makes a number whole, as an operation on two, of which the second says nothing."""
    return lambda value, _: how(value)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "max": max, "min": min, "/": operator.truediv, "power": _power,
    "rounded": _whole(round), "truncated": _whole(math.trunc), "floor": _whole(math.floor),
    "ceiling": _whole(math.ceil),
}
CALLS = frozenset({"max", "min", "power", "rounded", "truncated", "floor", "ceiling"})
DIVISIONS = frozenset({"//", "%", "/"})
_NUMBERS = (Size, int, float)


def plain_result(operation: str, left: Any, right: Any) -> Any:
    """Return the result where it is one of the operands, or a plain number."""
    if not isinstance(left, Size) and not isinstance(right, Size):
        return OPERATIONS[operation](left, right)
    if isinstance(right, int):
        if (operation in ("+", "-") and right == 0) or (operation in ("*", "//") and right == 1):
            return left
        if (operation == "*" and right == 0) or (operation == "%" and right == 1):
            return 0
    if isinstance(left, int) and ((operation == "+" and left == 0) or (operation == "*" and left == 1)):
        return right
    if isinstance(left, int) and operation == "*" and left == 0:
        return 0
    if left is right:
        return {"-": 0, "max": left, "min": left}.get(operation)
    return None


def key_of(operation: str, left: Any, right: Any) -> tuple[str, object, object] | None:
    """Return what tells an operation on two numbers from others; None where one of the two is no number."""
    # Asked thousands of times while a graph is planned: a place is told from a number by its type.
    if type(left) is Size:
        if type(right) is Size:
            return operation, left.place, right.place
        return (operation, left.place, (type(right), right)) if isinstance(right, _NUMBERS) else None
    if not isinstance(left, _NUMBERS):
        return None
    if type(right) is Size:
        return operation, (type(left), left), right.place
    return (operation, (type(left), left), (type(right), right)) if isinstance(right, _NUMBERS) else None


def now_of(value: Any) -> Any:
    """Return what a number is at present."""
    return value.now if isinstance(value, Size) else value


def as_python(value: Any) -> str:
    """Return a number as Python over the list ``v`` of all numbers."""
    return f"v[{value.place}]" if isinstance(value, Size) else repr(value)


def function_of(body: str, **known: object) -> Callable[..., Any]:
    """Return a function of ``v``, and of what is known by name, made from Python that this module has written."""
    scope: dict[str, Any] = {**known, "inf": math.inf, "nan": math.nan, **{name: OPERATIONS[name] for name in CALLS}}
    exec(f"def function(v):\n    {body}", scope)
    made: Callable[..., Any] = scope["function"]
    return made
