"""Partial results of updates by index, each of some of the indices: how they are made, and joined."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType

ADD = ("aten.add.Tensor", {"alpha": 1})
JOINS = {
    "sum": ADD, "mean": ADD, "prod": ("aten.mul.Tensor", {}), "amax": ("aten.maximum.default", {}),
    "amin": ("aten.minimum.default", {}),
}
WORD_BITS = {DType.INT: 31, DType.LONG: 31, DType.SHORT: 15, DType.CHAR: 7}
"""Of the largest whole number that tile memory holds."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """How an update joins what is written with what is there.

    Attributes:
        kind: ``sum``, ``prod``, ``amax``, ``amin`` or ``mean``; ``last`` where what is written last stays.
        has_old: Whether what is there takes part where something is written.
    """

    kind: str = "sum"
    has_old: bool = True

    @property
    def is_counted(self) -> bool:
        """Whether it matters how often an element is written."""
        return self.kind == "mean" or not self.has_old

    @property
    def tables(self) -> int:
        """Values that an element has in each part: what was joined there, and how often it was written."""
        return 1 + self.is_counted

    def dtypes(self, result: DType) -> tuple[DType, ...]:
        """Return the types of these values.

        Args:
            result: Type of the result.
        """
        value = DType.FLOAT if result.is_floating and self.kind != "last" else result
        return (value, DType.INT) if self.is_counted else (value,)

    def start(self, code: Code, dtype: DType, *shape: int) -> Tensor:
        """Return what a part begins with: it leaves everything that it is joined with as it is.

        Args:
            code: Of the vertex.
            dtype: Of the values.
            *shape: Of them.
        """
        number: float = int(self.kind == "prod")
        if self.kind in ("amax", "amin"):
            number = (math.inf if self.kind == "amin" else -math.inf) if dtype.is_floating else self._extreme(dtype)
        return code.full(number, dtype, *shape)

    def _extreme(self, dtype: DType) -> int:
        """Return the least whole number of a type of a tile, or the largest."""
        if dtype is DType.UNSIGNED_CHAR:
            return 255 * (self.kind == "amin")
        power = 1 << WORD_BITS[dtype]
        return power - 1 if self.kind == "amin" else -power

    def made(self, code: Code, places: int, number: Tensor, source: Tensor, dtype: DType) -> Tensor:
        """Return what a part has joined, ``[lines, places]``; of ``last`` the op itself makes that.

        Args:
            code: Of the vertex.
            places: Of a line.
            number: Of the place of each element of the source, for each line, or for all.
            source: ``[lines, n]``, what is joined.
            dtype: In which it is.
        """
        start, source = self.start(code, dtype, source.shape[0], places), code.cast(source, dtype)
        if self.kind in ("sum", "mean"):
            return code.added_by_index(start, number, source)
        return code.reduced_by_index(self.kind, start, number, source)

    def joined(self, code: Code, values: Tensor, counts: Tensor | None) -> tuple[Tensor, ...]:
        """Return what parts have joined together, and the counts if there are any, each ``[elements, 1]``.

        Args:
            code: Of the vertex.
            values: ``[parts, elements]``.
            counts: The same; None where none are made.
        """
        by_element = code.turned(values)
        if self.kind == "last":
            assert counts is not None
            value = code.gathered(by_element, _last_written(code, counts))
        elif self.kind in ("sum", "mean"):
            value = code.summed(by_element, values.dtype)
        else:
            value = code.reduced(self.kind, by_element)
        return (value,) if counts is None else (value, code.summed(code.turned(counts), DType.INT))

    def finished(self, code: Code, base: Tensor, value: Tensor, count: Tensor | None) -> Tensor:
        """Return the elements of the result: all parts together, joined with what was there.

        Args:
            code: Of the vertex.
            base: ``[elements, 1]``, what was there before.
            value: The same, what all parts have joined.
            count: How often each was written; None where that does not matter.
        """
        result, old = base.dtype, code.cast(base, value.dtype)
        if self.has_old:
            target, attrs = JOINS[self.kind]
            value = code.run(target, [(value.dtype, value.shape)], attrs, self=old, other=value)[0]
        if self.kind == "mean":
            assert count is not None
            value = self._divided(code, value, count)
        if not self.has_old:
            assert count is not None
            value = code.chosen(code.compared("gt", count, 0), value, code.cast(old, value.dtype))
        return code.cast(value, result)

    def _divided(self, code: Code, total: Tensor, count: Tensor) -> Tensor:
        """Return means of sums; those of whole numbers are rounded down, in words."""
        count = code.binary("add", count, 1) if self.has_old else code.unary("clamp", count, min=1)
        if total.dtype.is_floating:
            return code.binary("div", total, code.cast(count, total.dtype))
        return code.quotient(code.cast(total, DType.INT), count)


SUM = Reduction()
LAST = Reduction("last", has_old=False)


def _last_written(code: Code, counts: Tensor) -> Tensor:
    """Return the last part that has written each element, ``[elements, 1]``; the first where none has."""
    parts, elements = counts.shape
    number = code.column(code.numbered(0, parts))
    first = code.full(0, DType.LONG, parts, elements)
    written = code.chosen(code.compared("gt", counts, 0), code.binary("add", first, number), first)
    return code.reduced("amax", code.turned(written))
