"""Constants of the cost model that were fitted to rows of the score card, and the fit with a source left out.

At most ten are allowed. All other constants are from the sources that stand beside them, or estimates. A constant is
listed here with how it was fitted and on which kinds of row; `refitted` fits it again without one source at a time, or
without half of the rows where all are of one source, for the page to show what the model says of rows that it was not
fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torchipu.device import codelets
from torchipu.device.convolutions import vertices
from torchipu.device.convolutions.plan import plan_convolution
from torchipu.score.kinds import Kind, Prediction
from torchipu.score.programs import forget
from torchipu.score.rows import Row
from torchipu.score.statistics import statistics_of

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
        put: Sets it to a value, until it is set again, and empties caches of the compiler that depend on it.
    """

    name: str
    value: float
    unit: str
    kinds: tuple[str, ...]
    low: float
    high: float
    how: str
    put: Callable[[float], None]


def _put_dot_cycles(value: float) -> None:
    vertices.DOT_CYCLES = value
    plan_convolution.cache_clear()


def _put_softplus_cycles(value: float) -> None:
    codelets.SOFTPLUS_CYCLES = value


def _put_circle_cycles(value: float) -> None:
    codelets.CIRCLE_CYCLES = value


FITTED: tuple[Constant, ...] = (
    Constant(
        "torchipu.device.convolutions.vertices.DOT_CYCLES", vertices.DOT_CYCLES, "cycles", ("stencil",), 6, 24,
        "median error of the convolutions that find no plan within availableMemoryProportion, on silicon",
        _put_dot_cycles,
    ),
    Constant(
        "torchipu.device.codelets.SOFTPLUS_CYCLES", codelets.SOFTPLUS_CYCLES, "cycles", ("schnet",), 10, 200,
        "median error and 0.3 of its 90th percentile, by a grid together with CIRCLE_CYCLES on 66 of the blocks; it is "
        "what grows with the elements of nodes and pairs alike, beside products, gather and scatter",
        _put_softplus_cycles,
    ),
    Constant(
        "torchipu.device.codelets.CIRCLE_CYCLES", codelets.CIRCLE_CYCLES, "cycles", ("schnet",), 1000, 4000,
        "as SOFTPLUS_CYCLES; nearly all of the least blocks, which take a cosine of each distance, 32 of them on a "
        "tile. The published estimator says 2300",
        _put_circle_cycles,
    ),
)
"""All others are published numbers and estimates."""

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


MOST_HALVED = 32
"""Rows of a single source that are halved; more of them would take hours."""
Holds = Callable[[Row], bool]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Rows that constants are judged by without having seen them.

    Attributes:
        name: Of these rows.
        judges: Whether a row is one of them.
        fits: Whether constants are fitted to a row meanwhile.
    """

    name: str
    judges: Holds
    fits: Holds


def held_out(rows: Sequence[Row]) -> list[HeldOut]:
    """Return each source of some rows; where there is one alone, every second row of it, and the others.

    Args:
        rows: Of the kinds that a constant is fitted on.
    """
    sources = sorted({row.source for row in rows})
    if len(sources) > 1:
        return [_of_source(source) for source in sources]
    step = max(1, len(rows) // MOST_HALVED)
    names = [row.name for row in rows[::step]][:MOST_HALVED]
    halves = frozenset(names[::2]), frozenset(names[1::2])
    return [
        HeldOut(f"{source}, {len(one)} rows of {len(names)}", _named(one), _named(other))
        for source in sources for one, other in (halves, halves[::-1]) if one and other
    ]


def _of_source(source: str) -> HeldOut:
    return HeldOut(source, lambda row: row.source == source, lambda row: row.source != source)


def _named(names: frozenset[str]) -> Holds:
    return lambda row: row.name in names


@dataclass(frozen=True, slots=True)
class Refit:
    """What is lost on rows that constants were not fitted to.

    Attributes:
        name: Of the rows.
        whole: Loss with the constants as they are, fitted to all rows.
        without: The same with the constants as fitted without these.
    """

    name: str
    whole: float
    without: float


def refitted(
    constants: Sequence[Constant], groups: Iterable[HeldOut], loss: Callable[[Holds], float],
) -> Iterator[Refit]:
    """Fit the constants without each group of rows in turn, one constant after another.

    Args:
        constants: In the order in which they are fitted.
        groups: Rows that are held out.
        loss: Of the model as it is set, over the rows for which a function holds.
    """
    for group in groups:
        whole = loss(group.judges)
        try:
            for constant in constants:
                constant.put(fitted(constant, partial(loss, group.fits)))
            yield Refit(group.name, whole, loss(group.judges))
        finally:
            for constant in constants:
                constant.put(constant.value)


def median_error(kinds: Sequence[Kind], holds: Holds) -> float:
    """Return the median error over the rows of some kinds for which ``holds`` does; a loss for fits."""
    forget()
    pairs = []
    for kind in kinds:
        for row in kind.rows():
            predicted = kind.predict(row) if holds(row) else None
            if isinstance(predicted, Prediction):
                pairs.append((predicted.value, row.measured))
    found = statistics_of(pairs)
    return found.median if found else 0.0


def _at(constant: Constant, value: float, loss: Callable[[], float]) -> float:
    constant.put(value)
    return loss()


@contextmanager
def _restored(constant: Constant) -> Iterator[None]:
    try:
        yield
    finally:
        constant.put(constant.value)
