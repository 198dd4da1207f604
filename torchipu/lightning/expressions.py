"""Values that a step computes on the host, as expressions that are evaluated again for every micro-batch.

Two kinds meet here. A `Number` is known while the step is captured (the index of a batch, a counter) but changes from
micro-batch to micro-batch; what a program depends on becomes a guard. A `Pending` value is not known before the program
has run: what a metric returns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torchipu.errors import CaptureError


@dataclass(slots=True)
class Surroundings:
    """What expressions are evaluated in, for one micro-batch.

    Attributes:
        names: Numbers that the loop and the module have at this moment: ``batch_idx``, ``global_step``, counters.
        outputs: Results of the program.
        results: What metrics have returned, by the number of their call.
    """

    names: dict[str, Any] = field(default_factory=dict)
    outputs: Sequence[torch.Tensor] = ()
    results: dict[int, Any] = field(default_factory=dict)


Expression = Callable[[Surroundings], Any]


@dataclass(frozen=True, slots=True)
class Output:
    """Stands for a result of the program."""

    place: int

    def __call__(self, at: Surroundings) -> torch.Tensor:
        """Return the result of a micro-batch."""
        return at.outputs[self.place]


def evaluated(value: Any, at: Surroundings) -> Any:
    """Return a structure with the values of what stands in it."""
    return pytree.tree_map(lambda leaf: _value(leaf, at), value)


def _value(leaf: Any, at: Surroundings) -> Any:
    if isinstance(leaf, Output):
        return leaf(at)
    if isinstance(leaf, Number):
        return leaf.expression(at)
    if isinstance(leaf, Pending):
        return leaf._expression(at)
    return leaf


@dataclass(frozen=True, slots=True)
class Guard:
    """What must be so for a capture to hold.

    Attributes:
        expression: Of the numbers that change.
        value: What it gave while the step was captured.
    """

    expression: Expression
    value: object

    def holds(self, at: Surroundings) -> bool:
        """Whether it gives the same now."""
        now = self.expression(at)
        return type(now) is type(self.value) and (now == self.value or (now != now and self.value != self.value))


# --------------------------------------------------------------------------- numbers that change
class Number:
    """A Python number whose every use is noted; also an int or a float, as torch and Python ask for.

    Attributes:
        expression: Computes it anew.
        guards: Where its uses are noted.
        plain: What it is while the step is captured.
    """

    expression: Expression
    guards: list[Guard]
    plain: Any

    def fixed(self) -> Any:
        """Return the value as it is now; the capture holds only as long as it stays the same."""
        self.guards.append(Guard(self.expression, self.plain))
        return self.plain

    def __bool__(self) -> bool:
        return bool(_decided(bool, self))

    def __hash__(self) -> int:
        return hash(self.fixed())

    def __repr__(self) -> str:
        return repr(self.fixed())

    def __str__(self) -> str:
        return str(self.fixed())

    def __format__(self, spec: str) -> str:
        return format(self.fixed(), spec)

    def __index__(self) -> int:
        return operator.index(self.fixed())

    def __int__(self) -> int:
        return int(self.fixed())

    def __float__(self) -> float:
        return float(self.fixed())

    def __reduce__(self) -> Any:
        return type(self.plain), (self.fixed(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.fixed()


class IntNumber(Number, int):
    """A whole number."""


class FloatNumber(Number, float):
    """A number with a fraction."""


def number(plain: Any, expression: Expression, guards: list[Guard]) -> Any:
    """Return a number that changes; a value of another type as it is, with a guard on it."""
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        guards.append(Guard(expression, plain))
        return plain
    kind: Any = IntNumber if isinstance(plain, int) else FloatNumber
    made = kind(plain)
    made.expression, made.guards, made.plain = expression, guards, plain
    return made


def _guards_of(operands: Sequence[Any]) -> list[Guard]:
    return next(operand.guards for operand in operands if isinstance(operand, Number))


def _plain(operand: Any) -> Any:
    return operand.plain if isinstance(operand, Number) else operand


def _applied(function: Callable[..., Any], *operands: Any) -> Expression:
    return lambda at: function(*(_value(operand, at) for operand in operands))


def _decided(function: Callable[..., Any], *operands: Any) -> Any:
    """Return what a question gives now, and guard the answer."""
    answer = function(*map(_plain, operands))
    _guards_of(operands).append(Guard(_applied(function, *operands), answer))
    return answer


def _computed(function: Callable[..., Any], *operands: Any) -> Any:
    if any(not isinstance(operand, (int, float)) for operand in operands):
        return NotImplemented
    return number(function(*map(_plain, operands)), _applied(function, *operands), _guards_of(operands))


def _define_numbers() -> None:
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        function = getattr(operator, name)
        setattr(Number, f"__{name}__", lambda a, b, f=function: _computed(f, a, b))
        setattr(Number, f"__r{name}__", lambda a, b, f=function: _computed(f, b, a))
    for name in ("neg", "pos", "abs"):
        function = getattr(operator, name)
        setattr(Number, f"__{name}__", lambda a, f=function: _computed(f, a))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        function = getattr(operator, name)
        setattr(
            Number, f"__{name}__",
            lambda a, b, f=function: _decided(f, a, b) if isinstance(b, (int, float)) else NotImplemented,
        )


_define_numbers()

_ARITHMETIC = frozenset({
    "add", "sub", "mul", "div", "true_divide", "rsub", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__",
    "__rmul__", "__truediv__", "__rtruediv__", "add_", "mul_", "sub_", "div_", "__iadd__", "__imul__", "__isub__",
    "__itruediv__", "multiply", "subtract", "divide",
})
"""Functions of torch in which a float that changes may be a 0-d tensor: it becomes an input of the program."""


class NumbersInTorch(TorchFunctionMode):
    """Lets a number that meets a tensor become an input of the program, or fixes it by a guard.

    Args:
        as_input: Gives a 0-d tensor for a number, or None where there is no room for another.
    """

    def __init__(self, as_input: Callable[[Number], torch.Tensor | None]) -> None:
        super().__init__()
        self.as_input = as_input

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(leaf, Number) for leaf in leaves):
            return function(*args, **kwargs)
        takes_tensors = getattr(function, "__name__", "") in _ARITHMETIC and any(
            isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in leaves
        )

        def given(leaf: Any) -> Any:
            if not isinstance(leaf, Number):
                return leaf
            found = self.as_input(leaf) if takes_tensors else None
            return leaf.fixed() if found is None else found

        args, kwargs = pytree.tree_map(given, (args, kwargs))
        return function(*args, **kwargs)


# --------------------------------------------------------------------------- values that come later
class Pending:
    """A value that is known only when the program has run; operations on it are done then.

    Args:
        expression: Computes it.
        name: Of what it comes from, for errors.
        hold: Turns a tensor of the capture into an `Output`.
    """

    def __init__(self, expression: Expression, name: str, hold: Callable[[Any], Any]) -> None:
        self._expression = expression
        self._name = name
        self._hold = hold

    def _then(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Pending:
        held_args, held_kwargs = self._hold((args, kwargs))

        def later(at: Surroundings) -> Any:
            return function(*evaluated(held_args, at), **evaluated(held_kwargs, at))

        return Pending(later, self._name, self._hold)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note a function of torch that is given one."""
        one = next(leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, Pending))
        return one._then(function, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._then(getattr, self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what it will be."""
        return self._then(lambda called, *a, **k: called(*a, **k), self, *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._then(operator.getitem, self, key)

    def _refuse(self, *args: Any) -> NoReturn:
        raise CaptureError(
            f"the step needs the value of {self._name} as a Python value, before the program has run",
            remedy="log the metric, or compute it in a hook such as on_train_batch_end or on_validation_epoch_end",
        )

    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = _refuse
    item = tolist = numpy = _refuse


def _define_pending() -> None:
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        function = getattr(operator, name)
        setattr(Pending, f"__{name}__", lambda a, b, f=function: a._then(f, a, b))
        setattr(Pending, f"__r{name}__", lambda a, b, f=function: a._then(f, b, a))
    for name in ("lt", "le", "gt", "ge"):
        function = getattr(operator, name)
        setattr(Pending, f"__{name}__", lambda a, b, f=function: a._then(f, a, b))
    for name in ("neg", "abs"):
        function = getattr(operator, name)
        setattr(Pending, f"__{name}__", lambda a, f=function: a._then(f, a))


_define_pending()
