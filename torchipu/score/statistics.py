"""How predictions differ from measurements: one number for each of spread, tail and direction.

The error of a row is ``max(p / m, m / p) - 1`` for a prediction ``p`` and a measurement ``m``: a factor too high counts
as much as the same factor too low, which ``|p / m - 1|`` would not have it. The bias keeps the direction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statistics:
    """Errors of some rows.

    Attributes:
        count: Rows.
        median: Of the errors.
        p90: The error that nine of ten rows do not exceed.
        bias: Geometric mean of ``p / m``, less 1; below 0 where the model is too low.
    """

    count: int
    median: float
    p90: float
    bias: float


def error_of(predicted: float, measured: float) -> float:
    """Return the error of one row; infinite where nothing is predicted."""
    if predicted <= 0:
        return math.inf
    return max(predicted / measured, measured / predicted) - 1


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, between two values where it falls between them.

    Args:
        values: At least one, in any order.
        share: Of the values that lie below, 0 to 1.
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, part = int(place), place - int(place)
    if part == 0:
        return ordered[low]
    return ordered[low] * (1 - part) + ordered[low + 1] * part


def statistics_of(pairs: Sequence[tuple[float, float]]) -> Statistics | None:
    """Return the errors of pairs of prediction and measurement; None where there are none."""
    if not pairs:
        return None
    errors = [error_of(predicted, measured) for predicted, measured in pairs]
    ratios = [math.log(predicted / measured) for predicted, measured in pairs if predicted > 0]
    bias = math.exp(sum(ratios) / len(ratios)) - 1 if ratios else -1.0
    return Statistics(len(pairs), quantile(errors, 0.5), quantile(errors, 0.9), bias)
