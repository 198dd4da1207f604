"""Torch's sizes that are known when a graph is called, as those of the IR."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx import Node
from torch.utils._sympy import functions

from torchipu.ir.sizes import Sizes


class NoFormula(Exception):  # noqa: N818  it is caught, and no user sees it
    """A number of a graph is not computed from sizes in a way that the IR can repeat."""


_PAIRWISE: Mapping[Any, str] = {
    sympy.Add: "+", sympy.Mul: "*", functions.FloorDiv: "//", functions.CleanDiv: "//", functions.PythonMod: "%",
    functions.Mod: "%", functions.Max: "max", functions.Min: "min", sympy.Max: "max", sympy.Min: "min",
    functions.IntTrueDiv: "/", functions.FloatTrueDiv: "/", functions.FloatPow: "power",
}
_WHOLE: Mapping[Any, str] = {
    functions.TruncToInt: "truncated", functions.FloorToInt: "floor", functions.CeilToInt: "ceiling",
    functions.RoundToInt: "rounded",
}
_ROOTS = ("OpaqueUnaryFn_sqrt",)
"""Names of torch's square root, of which a formula is a power."""


class Symbols:
    """The symbols of a captured graph, and where a call shows what they are.

    Args:
        placeholders: Of the graph, with fake values.

    Attributes:
        given: Where a call shows each symbol: the placeholder, and the dimension of a tensor or -1 for a number.
        most: What each of them can be at most.

    Raises:
        NoFormula: A condition is given, or a symbol is nowhere given by itself.
    """

    def __init__(self, placeholders: Sequence[Node]) -> None:
        self._known: dict[Any, Any] = {}
        self.given: list[tuple[int, int]] = []
        self.most: list[float] = []
        hints: list[int] = []
        names: list[str] = []
        for place, node in enumerate(placeholders):
            value = node.meta.get("val")
            for dim, size in enumerate(value.shape) if isinstance(value, torch.Tensor) else [(-1, value)]:
                if not isinstance(size, (torch.SymInt, torch.SymFloat)):
                    if isinstance(size, torch.SymBool):
                        raise NoFormula(f"{node.name} is no number")
                    continue
                symbol = size.node.expr
                # A real number is given whatever it was computed of: those sizes may not be.
                is_given = isinstance(symbol, sympy.Symbol) or isinstance(size, torch.SymFloat)
                if is_given and symbol not in self._known:
                    self._known[symbol] = len(names)
                    self.given.append((place, dim))
                    self.most.append(_most(size))
                    names.append(str(symbol))
                    hints.append(0)
        self.sizes = Sizes(names, hints)
        self._known = {symbol: self.sizes.given[number] for symbol, number in self._known.items()}

    def of_call(self, arguments: Sequence[Any]) -> list[Any]:
        """Return what the symbols are in a call."""
        return [arguments[place] if dim < 0 else arguments[place].shape[dim] for place, dim in self.given]

    def read(self, value: Any) -> Any:
        """Return a number of torch's as one of the IR.

        Raises:
            NoFormula: There is none.
        """
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self._formula(value.node.expr)
        if isinstance(value, torch.SymBool):
            raise NoFormula(str(value))
        return value

    def _formula(self, expression: Any) -> Any:
        known = self._known.get(expression)
        if known is None:
            known = self._known[expression] = self._computed(expression)
        return known

    def _computed(self, expression: Any) -> Any:
        if expression.is_Integer:
            return int(expression)
        if expression.is_number:
            return float(expression)
        operands = expression.args
        if expression.func is functions.ToFloat:
            return self._formula(operands[0])
        if expression.func in _WHOLE:
            return self.sizes.computed(_WHOLE[expression.func], self._formula(operands[0]), 1)
        if expression.func.__name__ in _ROOTS:
            return self.sizes.computed("power", self._formula(operands[0]), 0.5)
        if isinstance(expression, sympy.Pow) and operands[1].is_Integer and operands[1] > 0:
            base = self._formula(operands[0])
            return reduce(lambda left, right: left * right, [base] * int(operands[1]))
        operation = _PAIRWISE.get(expression.func)
        if operation is None or not operands:
            raise NoFormula(str(expression))
        return reduce(
            lambda left, right: self.sizes.computed(operation, left, right), map(self._formula, operands),
        )


def _most(size: torch.SymInt | torch.SymFloat) -> float:
    """Return the largest value that a symbol can have, as far as torch knows."""
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_Integer else math.inf
