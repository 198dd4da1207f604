"""Sizes that are known when a program is called: numbers that remember how they were computed, and what rested on them.

Real numbers that are computed of sizes, such as the factor of a mean, are such numbers too. A ``Size`` stands for a
number wherever the IR has one. What is computed from it is a ``Size`` too, and what is decided by it, such as whether a
dimension is 1, is noted as a guard: with other numbers, whatever was made by these decisions holds as long as all
guards do. What needs a plain number (``range``, ``float``, an index) notes that it is this one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from torchipu import forks
from torchipu.ir.formulas import CALLS, DIVISIONS, OPERATIONS, as_python, function_of, key_of, now_of, plain_result
from torchipu.ir.guards import COMPARED, Guards, Numbers
from torchipu.ir.size import Size

_ELSEWHERE = (113, 100_003)
"""Sizes that no program has, from which to tell numbers that are the same from those that happen to be equal."""
_NEARBY = tuple(2 ** (half / 2) for half in range(-4, 9) if half)
"""By which sizes of a call are taken smaller and larger, to see whether what they decide may become another."""
_APART = "stride"
_CALLED = "called"
_PLAIN = frozenset({int, float, bool, str, type(None)})
_MEMBER = "member"


class Sizes:
    """Numbers that differ from call to call, and all that is computed from them.

    Args:
        names: A name for each.
        now: What they are at first.

    Attributes:
        equal: Whether the one at a place is a number, as far as that was asked of what they are now, and is noted.
        less: Whether it is less, likewise.
        at_most: Whether it is no more.
        lock: Held by who sets the numbers, as long as these count.
    """

    def __init__(self, names: Sequence[str], now: Sequence[int]) -> None:
        self.names = list(names)
        self.now: list[Any] = list(now)
        self._steps: list[tuple[str, Any, Any]] = []
        self._places: dict[tuple[str, object, object], Any] = {}
        self._watching: list[Guards] = []
        self._texts: dict[tuple[str, object, object], str] = {}
        self._outcomes: dict[tuple[str, object, object], bool] = {}  # of these numbers
        self.equal: dict[tuple[int, int], bool] = {}
        self.less: dict[tuple[int, int], bool] = {}
        self.at_most: dict[tuple[int, int], bool] = {}
        self._by_number = {"==": self.equal, "<": self.less, "<=": self.at_most}
        self._functions: dict[Callable[..., Any], int] = {}
        self._called: list[Callable[..., Any]] = []  # these, where operands make no numbers zeros
        self._results: dict[tuple[object, ...], Any] = {}
        self._compiled: list[Callable[[list[int]], None]] = []
        self._num_compiled = 0
        self._apart: list[Size] = []
        self._elsewhere: tuple[list[Any], ...] | None = None
        self._nearby: tuple[list[Any], ...] | None = None
        self.lock = forks.reentrant_lock()
        self.given = [Size(self, place) for place in range(len(self.names))]

    def apart(self, number: int) -> Size:
        """Return a number of a call that is given apart from the sizes, as a stride of an input is that lies with gaps.

        Args:
            number: Which of those of a call.
        """
        while len(self._apart) <= number:
            self._apart.append(Size(self, len(self.now)))
            self.now.append(0)
            self._steps.append((_APART, len(self._apart) - 1, 0))
        return self._apart[number]

    def computed(self, operation: str, left: Any, right: Any) -> Any:
        """Return what an operation gives: a plain number where it is one at any size.

        A division by a number that is 0 at present, as before the first call, gives 0, and a guard that it is.
        """
        key = key_of(operation, left, right)
        if key is None:
            return NotImplemented
        known = self._places.get(key)
        if known is None:
            plain = plain_result(operation, left, right)
            if plain is not None:
                return plain
            if operation in ("+", "*") and not isinstance(left, Size):
                return self.computed(operation, right, left)
            is_undefined = operation in DIVISIONS and isinstance(right, Size) and self.decided("==", right, 0)
            value = 0 if is_undefined else OPERATIONS[operation](now_of(left), now_of(right))
            known = self._places[key] = self._noted(value, operation, left, right)
        elif operation in DIVISIONS:
            self.decided("==", right, 0)
        return known

    def called(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Return what a function of numbers makes of arguments of which some are sizes.

        Args:
            function: Gives a number or a tuple of numbers, of the arguments alone.
            arguments: Numbers.

        Returns:
            A number that is computed of sizes, or a tuple of such. Nothing is decided.
        """
        key = (function, *((one.mark if type(one) is Size else (type(one), one)) for one in arguments))
        known = self._results.get(key)
        if known is None:
            now = function(*map(now_of, arguments))
            number = self._functions.get(function)
            if number is None:
                number = self._functions[function] = len(self._called)
                self._called.append(_defined(function, now))
            result = self._noted(now, _CALLED, number, tuple(arguments))
            if isinstance(now, tuple):
                members = [self._noted(one, _MEMBER, result, place) for place, one in enumerate(now)]
                make: Callable[..., Any] = getattr(type(now), "_make", tuple)
                result = make(members)
            known = self._results[key] = result
        return known

    def _noted(self, now: Any, operation: str, left: object, right: object) -> Size:
        """Return a number that is new here."""
        noted = Size(self, len(self.now))
        self.now.append(now)
        self._steps.append((operation, left, right))
        return noted

    def decided(self, comparison: str, left: Any, right: Any) -> Any:
        """Return how a comparison goes, which whoever is watching takes note of."""
        key = key_of(comparison, left, right)
        if key is None:
            return NotImplemented
        outcome = self._outcomes.get(key)
        if outcome is not None:  # whoever is watching has it noted
            return outcome
        outcome = self._outcomes[key] = COMPARED[comparison](now_of(left), now_of(right))
        if type(left) is Size and type(right) is int:
            self._by_number[comparison][left.place, right] = outcome
        if self._watching and (isinstance(left, Size) or isinstance(right, Size)):
            text = self._texts.get(key)
            if text is None:
                text = self._texts[key] = f"({as_python(left)} {comparison} {as_python(right)})"
            for guards in self._watching:
                guards.note(text, comparison, left, right, outcome)
        return outcome

    @contextmanager
    def watched(self) -> Iterator[Guards]:
        """Return the guards of all that is decided meanwhile."""
        guards = Guards()
        self._forget_outcomes()  # those are to be noted again
        self._watching.append(guards)
        try:
            yield guards
        finally:
            self._watching = [other for other in self._watching if other is not guards]

    def numbers(self, given: Sequence[int], apart: Sequence[int] = ()) -> list[int]:
        """Return what all numbers are if the first are given, and those `apart`."""
        if apart:
            self.apart(len(apart) - 1)
        if self._num_compiled < len(self._steps):
            lines, first = [], self._num_compiled
            for place, (operation, left, right) in enumerate(self._steps[first:], start=len(self.names) + first):
                if operation == _APART:
                    continue
                if operation == _CALLED:
                    lines.append(f"v[{place}] = called[{left}]({', '.join(map(as_python, right))})")
                    continue
                a, b = as_python(left), as_python(right)
                if operation == _MEMBER:
                    lines.append(f"v[{place}] = {a}[{b}]")
                    continue
                text = f"{operation}({a}, {b})" if operation in CALLS else f"{a} {operation} {b}"
                # Whether that is defined is a guard, which is looked at later.
                lines.append(f"v[{place}] = {text}" + (f" if {b} else 0" if operation in DIVISIONS else ""))
            self._compiled.append(function_of("\n    ".join(lines) or "pass", called=self._called))
            self._num_compiled = len(self._steps)
        values = [*given, *[0] * len(self._steps)]
        for size, value in zip(self._apart, apart, strict=False):
            values[size.place] = value
        for compute in self._compiled:
            compute(values)
        return values

    def set(self, given: Sequence[int], apart: Sequence[int] = ()) -> None:
        """Let the numbers be others from now on."""
        self.now = self.numbers(given, apart)
        self._forget_outcomes()

    def elsewhere(self) -> tuple[list[Any], ...]:
        """Return what all numbers are for other sizes than those of a call, few and many, each a number of its own."""
        if self._elsewhere is None:
            self._elsewhere = tuple([first + 2 * place for place in range(len(self.names))] for first in _ELSEWHERE)
        for first, numbers in zip(_ELSEWHERE, self._elsewhere, strict=True):
            self._add_found(numbers, [first - 2 * place for place in range(1, len(self._apart) + 1)])
        return self._elsewhere

    def nearby(self) -> tuple[list[Any], ...]:
        """Return what all numbers are for sizes less and larger than those of the first call, all by one factor."""
        if self._nearby is None:
            given = self.now[: len(self.names)]
            self._nearby = tuple([max(2, round(size * factor)) for size in given] for factor in _NEARBY)
        for numbers in self._nearby:
            self._add_found(numbers, [one.now for one in self._apart])
        return self._nearby

    def _add_found(self, numbers: list[Any], apart: Sequence[Any]) -> None:
        """Add what numbers are that have been noted since."""
        # Asked time and again while numbers are noted, a few at a time: compiling these would take longer.
        for operation, left, right in self._steps[len(numbers) - len(self.names):]:
            if operation == _APART:
                found = apart[left]
            elif operation == _CALLED:
                found = self._called[left](*(_at(one, numbers) for one in right))
            elif operation == _MEMBER:
                found = _at(left, numbers)[right]
            else:
                a, b = _at(left, numbers), _at(right, numbers)
                found = 0 if operation in DIVISIONS and not b else OPERATIONS[operation](a, b)
            numbers.append(found)

    def _forget_outcomes(self) -> None:
        self._outcomes.clear()
        for known in self._by_number.values():
            known.clear()

    def text(self, size: Size) -> str:
        """Return how a number is computed."""
        if size.place < len(self.names):
            return self.names[size.place]
        operation, left, right = self._steps[size.place - len(self.names)]
        if operation == _APART:
            return f"{_APART}{left}"
        if operation == _CALLED:
            name = next(one.__name__ for one, number in self._functions.items() if number == left)
            return f"{name}({', '.join(map(repr, right))})"
        if operation == _MEMBER:
            return f"{left!r}[{right}]"
        return f"{operation}({left!r}, {right!r})" if operation in CALLS else f"({left!r} {operation} {right!r})"


def largest(first: Any, second: Any) -> Any:
    """Return the larger of two numbers: of sizes one that is computed of both, so that nothing is decided."""
    return _of_both("max", first, second)


def least(first: Any, second: Any) -> Any:
    """Return the lesser of two numbers, without a decision."""
    return _of_both("min", first, second)


def may_be_same(left: Any, right: Any) -> bool:
    """Whether two numbers, or sequences of such, are equal for other sizes too, so that it is worth to ask of these.

    Nothing is decided: who rests on it compares the two as well. Of numbers that only happen to be equal, as a length
    and a constant, whoever would be right either way need not know; beside a 1, which says what is repeated, all do.
    """
    if not isinstance(left, (tuple, list)):
        return may_be_same((left,), (right,))
    if len(left) != len(right):
        return False
    sizes = next((one.sizes for one in (*left, *right) if type(one) is Size), None)
    if sizes is None:
        return tuple(left) == tuple(right)
    # One of several elsewheres has to do for all members.
    return any(
        all(
            _is_one(one) or _is_one(other) or _at(one, numbers) == _at(other, numbers)
            for one, other in zip(left, right, strict=True)
        ) for numbers in sizes.elsewhere()
    )


def flag_of(value: Any) -> Any:
    """Return a flag as a number that is computed of sizes where it may be another for sizes nearby, else a bool.

    Whoever is given a number does both, and lets it choose; of a bool it is decided that it is this one.
    """
    if type(value) is not Size:
        return bool(value)
    now = value.now
    return value if any(numbers[value.place] != now for numbers in value.sizes.nearby()) else bool(value)


def _is_one(value: Any) -> bool:
    return type(value) is int and value == 1


def _at(value: Any, numbers: Numbers) -> Any:
    return numbers[value.place] if type(value) is Size else value


Function = TypeVar("Function", bound=Callable[..., Any])


def of_numbers(function: Function) -> Function:
    """Let a function of numbers take sizes: what it decides is no guard, but part of how its result is computed.

    Args:
        function: Gives a number or a tuple of numbers, as many at any size, of its arguments alone, which are numbers.
            Where it divides by zero, as for sizes that it is never asked of, its results are zeros.

    Returns:
        A function that gives numbers computed of sizes where an argument is one. What a caller decides by these is a
        guard, as is anything else that is decided.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        size = next((one for one in (*arguments, *named.values()) if type(one) is Size), None)
        if size is None:
            return function(*arguments, **named)
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        # Those that are named only are given in order, too.
        return size.sizes.called(_in_order(function), list(bound.arguments.values()))

    return cast("Function", called)


@functools.cache
def _in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes all arguments by their order."""
    parameters = inspect.signature(function).parameters.values()
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    count = len(parameters) - len(named)
    if not named:
        return function

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        return function(*arguments[:count], **dict(zip(named, arguments[count:], strict=True)))

    return called


def _defined(function: Callable[..., Any], result: Any) -> Callable[..., Any]:
    """Return a function that gives zeros, as many as a result has, where it divides by zero."""
    zeros = (0,) * len(result) if isinstance(result, tuple) else 0

    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ZeroDivisionError:
            return zeros

    return called


def _of_both(operation: str, first: Any, second: Any) -> Any:
    size = first if isinstance(first, Size) else second
    if not isinstance(size, Size):
        return OPERATIONS[operation](first, second)
    return size.sizes.computed(operation, first, second)


def settled(value: Any, numbers: Numbers) -> Any:
    """Return a value with plain numbers in place of sizes, in lists and tuples too; the same object if it has none."""
    # Asked of all shapes and strides of a graph at each set of sizes.
    kind = type(value)
    if kind is Size:
        return numbers[value.place]
    if (kind is tuple or kind is list) and not _PLAIN.issuperset(map(type, value)):
        return kind([
            numbers[member.place] if type(member) is Size else settled(member, numbers) for member in value
        ])
    return value
