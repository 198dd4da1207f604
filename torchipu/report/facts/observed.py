"""What was seen while a program was made and ran: events, times of the host, magnitudes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torchipu.host.statistics import BIAS, TensorStatistics, advise_loss_scale
from torchipu.host.timing import StepTime
from torchipu.ir.graph import Op
from torchipu.report.facts import rows
from torchipu.report.facts.work import flops_of

LARGEST_EXPONENT = 16
"""Of what no half holds: magnitudes from 2^16 on."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened before the program could run; `torchipu.report.facts.rows.CompileEvent` explains it."""

    name: str
    kind: str
    seconds: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of a program beyond what was compiled.

    Attributes:
        events: Captures, passes, recompilations ..., in order.
        steps: Times of the steps of the host; none where they were not asked for.
        around_seconds: Time of calls outside the engine: binding, copying of states, Python.
        between_seconds: Time between the calls: loaders, and everything else of the user's.
        calls: That were timed.
        waits: For batches of loaders between calls.
        waited_seconds: That these took, among the time between the calls.
        statistics: Magnitudes in the last call; none where they are not counted.
        loss_scale: Of the last call; None for inference.
        loss_scales: Calls, from 0, from which on the loss scale was another, with it.
    """

    events: tuple[Event, ...] = ()
    steps: tuple[StepTime, ...] = ()
    around_seconds: float = 0.0
    between_seconds: float = 0.0
    calls: int = 0
    waits: int = 0
    waited_seconds: float = 0.0
    statistics: tuple[TensorStatistics, ...] = ()
    loss_scale: float | None = None
    loss_scales: Sequence[tuple[int, float]] = field(default_factory=tuple)


def compile_rows(events: Sequence[Event]) -> tuple[rows.CompileEvent, ...]:
    """Return events as rows."""
    return tuple(
        rows.CompileEvent(number, one.name, one.kind, round(one.seconds * 1e3, 3), one.detail)
        for number, one in enumerate(events)
    )


# --------------------------------------------------------------------------- host
@dataclass(slots=True)
class _Spent:
    """What steps of one name take."""

    calls: int = 0
    seconds: float = 0.0
    flops: int = 0
    moved_bytes: int = 0


def host_rows(observed: Observed) -> tuple[rows.HostTime, ...]:
    """Return where the time of the host went, the longest first.

    Of the steps of an op the longest one has its arithmetic: the others prepare operands for it.

    Args:
        observed: What was seen.
    """
    main = _main_steps(observed.steps)
    spent: dict[tuple[str, str], _Spent] = {}
    for step in observed.steps:
        one = spent.setdefault((step.name, step.kind), _Spent())
        one.calls += step.runs
        one.seconds += step.seconds
        one.moved_bytes += step.moved_bytes * step.runs
        if step.op is not None and main[step.op] is step:
            one.flops += flops_of(step.op) * step.runs
    if observed.calls:
        spent["around the engine", "python"] = _Spent(observed.calls, observed.around_seconds)
        if observed.waits:
            spent["DataLoader", "loader"] = _Spent(observed.waits, observed.waited_seconds)
        others = max(0.0, observed.between_seconds - observed.waited_seconds)
        spent["other code", "between calls"] = _Spent(observed.calls, others)
    total = sum(one.seconds for one in spent.values()) or 1.0
    order = sorted(spent.items(), key=lambda pair: -pair[1].seconds)
    return tuple(
        rows.HostTime(
            number, name, kind, one.calls, round(one.seconds * 1e6, 3), round(one.seconds / total, 6),
            _rate(one.flops, one.seconds), _rate(one.moved_bytes, one.seconds), "measured",
        ) for number, ((name, kind), one) in enumerate(order)
    )


def _main_steps(steps: Sequence[StepTime]) -> Mapping[Op, StepTime]:
    found: dict[Op, StepTime] = {}
    for step in steps:
        if step.op is not None and (step.op not in found or found[step.op].seconds < step.seconds):
            found[step.op] = step
    return found


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds / 1e9, 4) if seconds else 0.0


# --------------------------------------------------------------------------- magnitudes
def numerics_rows(
    statistics: Sequence[TensorStatistics], operations: Sequence[rows.Operation],
) -> tuple[rows.TensorNumerics, ...]:
    """Return magnitudes as rows.

    Args:
        statistics: Of a call.
        operations: Of the device program.
    """
    numbers = {one.name: one.number for one in operations}
    return tuple(_numerics(one, numbers.get(one.name, -1)) for one in statistics)


def _numerics(one: TensorStatistics, operation: int) -> rows.TensorNumerics:
    finite = [(place - BIAS, count) for place, count in enumerate(one.exponents) if count and 0 < place < 255]
    beyond = sum(count for exponent, count in finite if exponent >= LARGEST_EXPONENT)
    return rows.TensorNumerics(
        one.name, operation, one.elements, one.infinities + beyond, one.nans, round(one.underflow(), 6),
        2.0 ** finite[0][0] if finite else 0.0, one.abs_max, json.dumps(finite),
    )


def numerics_facts(observed: Observed) -> Iterator[rows.Fact]:
    """Yield the loss scale over time, and what the magnitudes say of it."""
    if observed.loss_scales:
        yield rows.Fact("loss_scale_over_time", json.dumps([list(pair) for pair in observed.loss_scales]), "", "exact")
    if observed.statistics and observed.loss_scale is not None:
        advice = advise_loss_scale(observed.statistics, observed.loss_scale)
        said = {
            "current": advice.current, "suggested": advice.suggested, "lost": advice.lost,
            "lost_then": advice.lost_then, "words": str(advice),
        }
        yield rows.Fact("loss_scale_advice", json.dumps(said), "", "measured")
