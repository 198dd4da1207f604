"""The search for cuts: dynamic programming over units for the stage that takes longest, then moves of single cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from torchipu.cost.exchange import link_cycles
from torchipu.cost.sync import sync_cycles
from torchipu.ir.types import Leg
from torchipu.partition.units import Unit
from torchipu.passes.schedule import make_schedule
from torchipu.target import Target

NONE, STAGE, SOME, ALL = "none", "stage", "some", "all"
MODES = (NONE, STAGE, SOME)
"""What is recomputed: nothing; every stage but the last; the blocks of the stages that do not fit otherwise.

``ALL``, the blocks of all stages, is for models that fit nowhere.
"""


@dataclass(frozen=True, slots=True)
class Cuts:
    """A choice of stages.

    Attributes:
        begins: The unit at which each stage begins.
        ipus: The IPU of each stage.
        mode: What is recomputed, one of ``MODES``.
        again: For each stage whether its blocks are recomputed.
        off_chip: Whether optimiser states lie in Streaming Memory.
        cycles: Estimate of a micro-batch's share of an update.
    """

    begins: tuple[int, ...]
    ipus: tuple[int, ...]
    mode: str
    again: tuple[bool, ...]
    off_chip: bool
    cycles: float


@dataclass(slots=True)
class Model:
    """Units with prefix sums, and what was learnt of their memory from trials.

    Attributes:
        units: In order.
        target: The machine.
        is_training: Whether there is a backward.
        micro_batches: What the user asks for; raised to what a pipeline needs.
        execution: The option.
        waits_for_all: Whether no IPU computes while another waits for the host.
        learnt_bytes: What a tile of a stage, counted from the last, needs beyond the estimate; by recomputation.
        unlearnt_bytes: The same for stages that no trial has shown yet.
        whole: Units that do not cut a larger module in two: what crosses there is sure to be what the forward hands on.
    """

    units: Sequence[Unit]
    target: Target
    is_training: bool
    micro_batches: int
    execution: str
    waits_for_all: bool = True
    learnt_bytes: dict[tuple[str, bool, int], float] = field(default_factory=dict)
    unlearnt_bytes: float = 0.0
    whole: frozenset[int] = frozenset()
    _sums: Mapping[str, list[float]] = field(default_factory=dict)
    _needed: dict[tuple[int, int, int, str, bool], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = (
            "forward", "host", "backward", "recompute", "update", "kept_bytes", "activation_bytes", "entering_bytes",
        )
        self._sums = {
            name: list(accumulate((getattr(unit, name) for unit in self.units), initial=0)) for name in names
        }

    def total(self, name: str, begin: int, end: int) -> float:
        """Return the sum of an attribute over a run of units."""
        return self._sums[name][end] - self._sums[name][begin]

    def least_micro_batches(self, num_stages: int) -> int:
        """Return the micro-batches that fill a pipeline, or what the user asks for if that is more."""
        return max(self.micro_batches, (2 if self.is_training else 1) * (num_stages - 1) + 1)

    def resolved(self, begin: int, end: int, distance: int, mode: str, off_chip: bool) -> str:
        """Return what one stage recomputes: ``NONE``, ``STAGE`` or, for its blocks, ``ALL``.

        Args:
            begin: Its first unit.
            end: The unit after its last.
            distance: Stages after it.
            mode: The mode of all stages.
            off_chip: Whether optimiser states lie in Streaming Memory.
        """
        if mode == STAGE and distance == 0:
            return NONE
        if mode == SOME:
            return NONE if self._holds(begin, end, distance, NONE, off_chip) else ALL
        return mode

    # ------------------------------------------------------------------ time
    def legs(self, begin: int, end: int, again: str) -> tuple[float, float]:
        """Return the cycles of the forward and of the backward of a stage, with what it recomputes."""
        backward = self.total("backward", begin, end) + (self.total("recompute", begin, end) if again != NONE else 0)
        return self.total("forward", begin, end), backward

    def steady(self, begin: int, end: int, again: str) -> float:
        """Return what a stage takes in a cycle of the full pipeline."""
        return sum(self.legs(begin, end, again)) + (0 if self.waits_for_all else self.total("host", begin, end))

    def candidates(self) -> list[frozenset[int]]:
        """Return sets of units at which stages may begin.

        A copy between IPUs holds all of them up, so what crosses a cut is limited, first to little.
        """
        sizes = [unit.entering_bytes for unit in self.units[1:]] or [0]
        limits = [factor * min(sizes) for factor in (1, 2, 4)] + [max(sizes)]
        every = [
            frozenset(number for number, unit in enumerate(self.units) if number == 0 or unit.entering_bytes <= limit)
            for limit in limits
        ]
        return list(dict.fromkeys([self.whole | {0}, *every]))

    def cycles(self, begins: Sequence[int], ipus: Sequence[int], mode: str, off_chip: bool) -> float:
        """Return a micro-batch's share of the cycles of an update, from the schedule row by row."""
        count = len(begins)
        spans = self.spans(begins)
        legs = [self.legs(b, e, self.resolved(b, e, d, mode, off_chip)) for b, e, d in spans]
        micro_batches = self.least_micro_batches(count)
        update = max(self.total("update", begin, end) for begin, end, _ in spans)
        waits = [self.total("host", begin, end) for begin, end, _ in spans]
        if count == 1:
            return sum(legs[0]) + waits[0] + update / micro_batches
        sent = max(self.units[begin].entering_bytes for begin in begins[1:])
        between = link_cycles(self.target, sent) + sync_cycles(self.target, "replica")
        schedule = make_schedule(count, ipus, micro_batches, self.execution, self.is_training)
        total = update
        for row in schedule.steps:
            cells = [[action for action in cell if action.leg is not Leg.UPDATE] for cell in row]
            streams = [sum(waits[a.stage] for a in cell if a.leg is Leg.FORWARD) for cell in cells]
            computes = [sum(legs[a.stage][a.leg is Leg.BACKWARD] for a in cell) for cell in cells]
            together = max(streams) + max(computes)
            apart = max(one + other for one, other in zip(streams, computes, strict=True))
            total += between + (together if self.waits_for_all else apart)
        return total / micro_batches

    def spans(self, begins: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return first unit, end and distance to the last stage of each stage."""
        ends = [*begins[1:], len(self.units)]
        return [(b, e, len(begins) - 1 - stage) for stage, (b, e) in enumerate(zip(begins, ends, strict=True))]

    # ------------------------------------------------------------------ memory
    def tile_bytes(self, begin: int, end: int, distance: int, again: str, off_chip: bool) -> float:
        """Return what a tile of a stage needs by estimate, every tensor being spread evenly."""
        key = (begin, end, distance, again, off_chip)
        if key not in self._needed:
            self._needed[key] = self._tile_bytes(*key)
        return self._needed[key]

    def _tile_bytes(self, begin: int, end: int, distance: int, again: str, off_chip: bool) -> float:
        units = self.units[begin:end]
        states = {tensor: tensor.device_bytes for unit in units for tensor in unit.weights}
        kept = self.total("kept_bytes", begin, end) * (0.5 if off_chip else 1.0)
        depth = 2 * distance + 1 if self.is_training else 1
        activations = self.total("activation_bytes", begin, end)
        entering = self.units[begin].entering_bytes
        if again == NONE:
            held = depth * (activations + entering)
        elif again == STAGE:
            held = depth * entering + activations
        else:
            held = depth * sum(unit.entering_bytes for unit in units) + max(u.activation_bytes for u in units)
        return (sum(states.values()) + kept + held) / self.target.num_tiles

    def _holds(self, begin: int, end: int, distance: int, again: str, off_chip: bool, beside: float = 0.0) -> bool:
        beyond = self.learnt_bytes.get((again, off_chip, distance), self.unlearnt_bytes)
        needed = self.tile_bytes(begin, end, distance, again, off_chip) + beyond + beside
        return needed <= self.target.tile_memory_bytes

    def fits(
        self, begin: int, end: int, distance: int, mode: str, off_chip: bool, beside: float = 0.0,
    ) -> bool:
        """Whether a stage fits its tiles, by estimate and by what trials have shown.

        Args:
            begin: Its first unit.
            end: The unit after its last.
            distance: Stages after it.
            mode: The mode of all stages.
            off_chip: Whether optimiser states lie in Streaming Memory.
            beside: Bytes that another stage on the same IPU takes of a tile.
        """
        again = self.resolved(begin, end, distance, mode, off_chip)
        return self._holds(begin, end, distance, again, off_chip, beside)

    def folds(self) -> list[int]:
        """Return the units from which on the last stage may share IPU 0: where they read a weight of the first unit.

        Elsewhere, the weight would be copied at every update and its gradient sent at every micro-batch.
        """
        first = self.units[0].weights
        return [number for number, unit in enumerate(self.units) if number > 1 and unit.weights & first][:1]


def best_cuts(
    model: Model, most_ipus: int, mode: str, off_chip: bool, *, must_fit: bool = True, fold: int | None = None,
    at: frozenset[int] | None = None,
) -> list[Cuts]:
    """Return for each number of IPUs the cuts whose slowest IPU is fastest, where there are any that fit.

    Counted from the last stage, so that a stage's distance to the end, which decides what it stashes, is known.

    Args:
        model: The units.
        most_ipus: The largest number of IPUs.
        mode: What is recomputed.
        off_chip: Whether optimiser states lie in Streaming Memory.
        must_fit: Whether stages that do not fit are left out.
        fold: The unit from which on the last stage runs on IPU 0, beside the first; None for stages with an IPU each.
        at: Units at which stages may begin; None for all.
    """
    count = len(model.units) if fold is None else fold
    infinite = float("inf")
    spent, taken = 0.0, 0.0
    if fold is not None:
        again = model.resolved(fold, len(model.units), 0, mode, off_chip)
        spent = model.steady(fold, len(model.units), again)
        taken = model.tile_bytes(fold, len(model.units), 0, again, off_chip)
    best: list[list[tuple[float, int]]] = []
    found: list[Cuts] = []
    for after in range(min(most_ipus, count)):
        distance = after + (fold is not None)
        row: list[tuple[float, int]] = []
        for begin in range(count):
            choice = (infinite, count)
            if at is not None and begin not in at:
                row.append(choice)
                continue
            is_first = begin == 0 and fold is not None
            for end in [count] if after == 0 else range(begin + 1, count):
                here = model.steady(begin, end, model.resolved(begin, end, distance, mode, off_chip))
                here += spent if is_first else 0.0
                slowest = max(best[-1][end][0] if after else 0.0, here)
                if here >= choice[0]:
                    break  # longer stages are slower still
                if slowest >= choice[0]:
                    continue
                if must_fit and not model.fits(begin, end, distance, mode, off_chip, taken if is_first else 0.0):
                    break  # longer stages need more
                choice = (slowest, end)
            row.append(choice)
        best.append(row)
        if row[0][0] < infinite and (fold is None or after):
            begins, ipus = _follow(best, count), list(range(after + 1))
            if fold is not None:
                begins, ipus = [*begins, fold], [*ipus, 0]
            begins = _moved(model, begins, ipus, mode, off_chip, must_fit, at)
            again_by_stage = tuple(model.resolved(*span, mode, off_chip) == ALL for span in model.spans(begins))
            cycles = model.cycles(begins, ipus, mode, off_chip)
            found.append(Cuts(tuple(begins), tuple(ipus), mode, again_by_stage, off_chip, cycles))
    return found


def _follow(best: list[list[tuple[float, int]]], count: int) -> list[int]:
    begins, begin = [], 0
    for row in reversed(best):
        begins.append(begin)
        begin = row[begin][1]
        if begin >= count:
            break
    return begins


def _moved(
    model: Model, begins: list[int], ipus: list[int], mode: str, off_chip: bool, must_fit: bool,
    at: frozenset[int] | None,
) -> list[int]:
    """Move single cuts to a neighbouring place for as long as the whole schedule becomes shorter."""
    places = sorted(range(len(model.units)) if at is None else at)
    now = model.cycles(begins, ipus, mode, off_chip)
    improved = True
    while improved:
        improved = False
        for place in range(1, len(begins)):
            for step in (-1, 1):
                near = [one for one in places if (one - begins[place]) * step > 0]
                if not near:
                    continue
                other = [*begins[:place], min(near) if step > 0 else max(near), *begins[place + 1 :]]
                spans = model.spans(other)
                if not all(begin < end for begin, end, _ in spans):
                    continue
                cycles = model.cycles(other, ipus, mode, off_chip)
                if cycles < now and (not must_fit or _all_fit(model, spans, ipus, mode, off_chip)):
                    begins, now, improved = other, cycles, True
    return begins


def _all_fit(model: Model, spans: list[tuple[int, int, int]], ipus: list[int], mode: str, off_chip: bool) -> bool:
    """Whether all stages fit, a last one on IPU 0 beside the first."""
    beside = 0.0
    if len(spans) > 1 and ipus[-1] == 0:
        beside = model.tile_bytes(*spans[-1], model.resolved(*spans[-1], mode, off_chip), off_chip)
        spans = spans[:-1]
    return all(
        model.fits(*span, mode, off_chip, beside if ipu == 0 else 0.0) for span, ipu in zip(spans, ipus, strict=False)
    )


def ranked(model: Model, most_ipus: int, *, off_chip: bool) -> list[Cuts]:
    """Return all choices that fit by estimate, the fastest first."""
    modes = MODES if model.is_training else (NONE,)
    folds = [None, *model.folds()]
    found = [
        cuts for fold in folds for mode in modes for at in model.candidates()
        for cuts in best_cuts(model, most_ipus, mode, off_chip, fold=fold, at=at)
    ]
    return sorted(found, key=lambda cuts: (cuts.cycles, MODES.index(cuts.mode)))
