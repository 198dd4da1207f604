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
        block: Block, IPU, stage and leg; empty where nothing is placed.
    """

    name: str
    kind: str
    leg: str
    dtype: str
    source: str
    exponents: tuple[int, ...]
    abs_max: float
    nans: int
    block: str = ""

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


@dataclass(frozen=True, slots=True)
class LossScaleAdvice:
    """Which loss scale the gradients of a call ask for, and why; printing it says both.

    Attributes:
        current: The scale of that call.
        suggested: A power of two, at most 2^15, which a half holds.
        largest: The gradient with the largest finite element; None where all are zero.
        overflowed: The first gradient with an element that is not finite, if there is one.
        lost: Share of non-zero elements of gradients that have not all bits of a half: smaller than 2^-14.
        lost_then: The same at the suggested scale.
    """

    current: float
    suggested: float
    largest: TensorStatistics | None
    overflowed: TensorStatistics | None
    lost: float
    lost_then: float

    def __str__(self) -> str:
        if self.overflowed is not None:
            verdict = "was used and is too large: "
            verdict += f"{_named(self.overflowed)} overflowed; {self.suggested:g} is suggested"
        elif self.largest is None:
            verdict = f"was used; {self.suggested:g} is suggested, the most that a half holds: all gradients are zero"
        elif self.suggested == self.current:
            verdict = "was used and suits"
        else:
            verdict = f"was used; {self.suggested:g} is suggested"
        lines = [f"loss scale: {self.current:g} {verdict}"]
        if self.largest is not None:
            then = self.largest.abs_max * (self.suggested / self.current)
            lines.append(
                f"largest gradient: {self.largest.abs_max:.3g} in {_named(self.largest)}; {then:.3g} at the suggested "
                f"scale, and a half holds {LARGEST_HALF:.0f}"
            )
        lines.append(
            f"too small for all bits of a half: {self.lost:.1%} of the gradients' elements, {self.lost_then:.1%} at "
            "the suggested scale"
        )
        return "\n".join(lines)


def _named(one: TensorStatistics) -> str:
    return f"%{one.name} ({', '.join(part for part in (one.kind, one.source) if part)})"


def advise_loss_scale(
    statistics: Iterable[TensorStatistics], current: float = 1.0, headroom: float = 4.0,
) -> LossScaleAdvice:
    """Return the largest power of two by which a loss may be scaled without an overflow of half gradients, and why.

    Args:
        statistics: Of a training call; those of the backward leg count: of halves, and of floats where there are none.
        current: The loss scale of that call. If a gradient overflowed at it, half of it is the most that is suggested.
        headroom: How much larger than what was seen gradients may yet become.
    """
    backward = [one for one in statistics if one.leg == "backward"]
    gradients = [one for one in backward if one.dtype == "half"] or backward
    largest = max(gradients, key=lambda one: one.abs_max, default=None)
    overflowed = next((one for one in gradients if one.infinities or one.nans), None)
    suggested = float(MOST)
    if largest is not None and largest.abs_max:
        seen = largest.abs_max / current
        suggested = min(suggested, 2.0 ** math.floor(math.log2(LARGEST_HALF / (headroom * seen))))
    if overflowed is not None:
        suggested = min(suggested, 2.0 ** (math.ceil(math.log2(current)) - 1))
    return LossScaleAdvice(
        current, suggested, largest if largest is not None and largest.abs_max else None, overflowed,
        _lost(gradients, 1.0), _lost(gradients, suggested / current),
    )


def _lost(gradients: Iterable[TensorStatistics], scale: float) -> float:
    """Return the share of non-zero elements that, scaled, are less than the smallest normal half."""
    counted = [(one.elements - one.zeros, one.underflow(scale) + one.subnormal(scale)) for one in gradients]
    total = sum(count for count, _ in counted)
    return sum(count * share for count, share in counted) / total if total else 0.0


def suggest_loss_scale(statistics: Iterable[TensorStatistics], current: float = 1.0, headroom: float = 4.0) -> float:
    """Return the scale of `advise_loss_scale` alone.

    Args:
        statistics: Of a training call.
        current: The loss scale of that call.
        headroom: How much larger than what was seen gradients may yet become.

    Returns:
        A power of two, at most 2^15, which a half holds.
    """
    return advise_loss_scale(statistics, current, headroom).suggested


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
