"""Magnitudes of the values that a program computes, and the loss scale that suits them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BIAS = 127  # of the exponents of a float
SMALLEST_HALF, SMALLEST_NORMAL_HALF, LARGEST_HALF = -24, -14, 65504.0  # the first two as powers of two
MOST = 2**15


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Magnitudes of one result of an op, over all micro-batches of a call.

    Attributes:
        name: Of the tensor in the graph.
        kind: Of the op.
        leg: ``forward``, ``backward`` or ``update``.
        dtype: ``half`` or ``float``.
        source: The user's line.
        exponents: How many elements have each exponent of a float: number e holds magnitudes from 2^(e - 127) on; the
            first holds zeros, the last infinity and NaN.
        abs_max: Largest magnitude that is finite.
        nans: How many elements are NaN.
    """

    name: str
    kind: str
    leg: str
    dtype: str
    source: str
    exponents: tuple[int, ...]
    abs_max: float
    nans: int

    @property
    def elements(self) -> int:
        """How many elements there were."""
        return sum(self.exponents)

    @property
    def zeros(self) -> int:
        """How many were zero."""
        return self.exponents[0]

    @property
    def infinities(self) -> int:
        """How many were infinite."""
        return self.exponents[-1] - self.nans

    def underflow(self, scale: float = 1.0) -> float:
        """Return the share of non-zero elements that, scaled, are less than half of the smallest half, 2^-24.

        Args:
            scale: A power of two.
        """
        return self._share(self.exponents[1 : self._place(SMALLEST_HALF - 1, scale)])

    def subnormal(self, scale: float = 1.0) -> float:
        """Return the share of non-zero elements that, scaled, have fewer bits as halves than normal ones.

        Args:
            scale: A power of two.
        """
        first, last = self._place(SMALLEST_HALF - 1, scale), self._place(SMALLEST_NORMAL_HALF, scale)
        return self._share(self.exponents[first:last])

    def overflow(self, scale: float = 1.0) -> float:
        """Return the share of non-zero elements that, scaled, are 65536 or more, infinite or NaN.

        Args:
            scale: A power of two.
        """
        return self._share(self.exponents[self._place(16, scale) :])

    def _place(self, exponent: int, scale: float) -> int:
        """Return which exponent an element has that the scale brings to this one."""
        return min(255, max(1, exponent + BIAS - math.frexp(scale)[1] + 1))

    def _share(self, counts: Sequence[int]) -> float:
        nonzero = self.elements - self.zeros
        return sum(counts) / nonzero if nonzero else 0.0


def suggest_loss_scale(statistics: Iterable[TensorStatistics], current: float = 1.0, headroom: float = 4.0) -> float:
    """Return the largest power of two by which a loss may be scaled without an overflow of half gradients.

    Args:
        statistics: Of a training call that met no overflow; those of the backward leg count.
        current: The loss scale of that call.
        headroom: How much larger than what was seen gradients may yet become.

    Returns:
        A power of two, at most 2^15, which a half holds.
    """
    largest = max((one.abs_max for one in statistics if one.leg == "backward"), default=0.0) / current
    if largest == 0:
        return float(MOST)
    return float(min(MOST, 2.0 ** math.floor(math.log2(LARGEST_HALF / (headroom * largest)))))


def format_statistics(statistics: Iterable[TensorStatistics]) -> str:
    """Return a table with a line for each tensor: range, shares that half would lose, and source."""
    head = (
        "tensor", "op", "leg", "type", "elements", "abs max", "zero", "underflow", "subnormal", "overflow", "source",
    )
    rows = [
        head,
    ] + [
        (
            f"%{one.name}", one.kind, one.leg, one.dtype, f"{one.elements:,}", f"{one.abs_max:.3g}",
            f"{one.zeros / one.elements if one.elements else 0:.1%}", f"{one.underflow():.1%}",
            f"{one.subnormal():.1%}", f"{one.overflow():.1%}", one.source,
        )
        for one in statistics
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
