"""Constants of the cost model that were fitted to rows of the score card, and the fit with a source left out.

At most ten are allowed. All other constants are from the sources that stand beside them, or estimates. A constant is
listed here with how it was fitted and on which kinds of row; `refitted` fits it again without one source at a time, for
the page to show what the model says of rows that it was not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

MOST = 10
"""Constants that may be fitted."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of the cost model that was fitted.

    Attributes:
        name: Where it stands, dotted: ``torchipu.device.cost.exchange.REGULAR_FACTOR``.
        value: As fitted on all rows.
        unit: Of the value.
        kinds: Kinds of row that it was fitted on.
        low: The least that the fit may choose.
        high: The most.
        how: What was minimised, and what was held fixed.
        put: Sets it to a value, until it is set again.
    """

    name: str
    value: float
    unit: str
    kinds: tuple[str, ...]
    low: float
    high: float
    how: str
    put: Callable[[float], None]


FITTED: tuple[Constant, ...] = ()
"""None yet: the model is made of published numbers and estimates."""

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
STEPS = 12
"""Evaluations of a fit beside the first two; they leave 0.3 % of the range."""


def fitted(constant: Constant, loss: Callable[[], float], steps: int = STEPS) -> float:
    """Return the value with the least loss, by a search that halves the range by the golden ratio.

    Args:
        constant: What to fit; it is back at its value afterwards.
        loss: Of the model as it is set.
        steps: Evaluations beside the first two.
    """
    with _restored(constant):
        low, high = constant.low, constant.high
        inner = [high - GOLDEN_RATIO * (high - low), low + GOLDEN_RATIO * (high - low)]
        losses = [_at(constant, value, loss) for value in inner]
        for _ in range(steps):
            if losses[0] <= losses[1]:
                high, inner[1], losses[1] = inner[1], inner[0], losses[0]
                inner[0] = high - GOLDEN_RATIO * (high - low)
                losses[0] = _at(constant, inner[0], loss)
            else:
                low, inner[0], losses[0] = inner[0], inner[1], losses[1]
                inner[1] = low + GOLDEN_RATIO * (high - low)
                losses[1] = _at(constant, inner[1], loss)
        return (low + high) / 2


def refitted(
    constants: Sequence[Constant], sources: Sequence[str], loss_without: Callable[[str], Callable[[], float]],
    loss_of: Callable[[str], float],
) -> Iterator[tuple[str, float, float]]:
    """Yield for each source the loss of its rows with the constants as they are, and as fitted without the source.

    Args:
        constants: Fitted one after another, in this order.
        sources: Names of sources.
        loss_without: Returns the loss over all rows but those of a source.
        loss_of: Returns the loss over the rows of a source.
    """
    for source in sources:
        whole = loss_of(source)
        values = []
        for constant in constants:
            values.append(fitted(constant, loss_without(source)))
            constant.put(values[-1])
        try:
            yield source, whole, loss_of(source)
        finally:
            for constant in constants:
                constant.put(constant.value)


def _at(constant: Constant, value: float, loss: Callable[[], float]) -> float:
    constant.put(value)
    return loss()


@contextmanager
def _restored(constant: Constant) -> Iterator[None]:
    try:
        yield
    finally:
        constant.put(constant.value)
