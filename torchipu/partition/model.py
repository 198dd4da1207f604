"""What a choice of stages takes by estimate: cycles row by row of its schedule; bytes, of which trials teach more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise, product

from torchipu.device.cost.exchange import link_cycles, streaming_cycles
from torchipu.device.cost.sync import sync_cycles
from torchipu.device.schedule import make_schedule
from torchipu.ir.types import Leg
from torchipu.partition.units import Edge, Unit
from torchipu.target import Target

NONE, STAGE, ALL = "none", "stage", "all"
"""What a stage recomputes: nothing; all of it from its inputs, as one; each of its blocks from the block's inputs."""
SOME = "some"  # of a choice: the blocks of those stages that do not fit otherwise

Span = tuple[int, int, int]  # first unit, unit after the last, stages after this one
Part = tuple[Span, str]  # a stage and what it recomputes
Likeness = tuple[bool, tuple[tuple[int, str], ...]]  # what IPUs share that need the same beyond the estimate
Cell = tuple[tuple[int, Leg], ...]
Traffic = dict[tuple[int, int], int]  # bytes by sending and receiving IPU


@dataclass(slots=True)
class Model:
    """Units with prefix sums, and what was learnt of their memory from trials.

    Attributes:
        units: In order.
        edges: What goes from unit to unit.
        target: The machine.
        is_training: Whether there is a backward.
        micro_batches: What the user asks for; raised to what a pipeline needs.
        execution: The option.
        waits_for_all: Whether no IPU computes while another waits for the host.
        choice_by_ipu: Which of the units' cycles hold on each IPU, as its available memory has it.
        states_off_chip: Whether states of the optimiser lie in Streaming Memory in any case.
        state_share: Part of these states that a replica has.
        learnt_bytes: What a tile needs beyond the estimate, by what its IPU computes and recomputes.
        unlearnt_bytes: The same where no trial has shown it yet.
        whole: Units that do not cut a larger module in two: what crosses there is sure to be what the forward hands on.
    """

    units: Sequence[Unit]
    edges: Sequence[Edge]
    target: Target
    is_training: bool
    micro_batches: int
    execution: str
    waits_for_all: bool = True
    choice_by_ipu: Sequence[int] = ()
    states_off_chip: bool = False
    state_share: float = 1.0
    learnt_bytes: dict[Likeness, float] = field(default_factory=dict)
    unlearnt_bytes: float = 0.0
    whole: frozenset[int] = frozenset()
    _sums: Mapping[tuple[str, int], list[float]] = field(default_factory=dict)
    _busy: dict[tuple[int, bool], list[float]] = field(default_factory=dict)
    _guessed: dict[Likeness, float] = field(default_factory=dict)
    _needed: dict[object, float] = field(default_factory=dict)
    _weights: dict[tuple[int, int], dict[object, int]] = field(default_factory=dict)
    _crossing: list[list[Edge]] = field(default_factory=list)

    def __post_init__(self) -> None:
        choices = range(len(self.units[0].forward))
        columns = {(name, choice): [getattr(unit, name)[choice] for unit in self.units]
                   for name in ("forward", "backward", "recompute") for choice in choices}
        columns |= {(name, 0): [getattr(unit, name) for unit in self.units] for name in (
            "host", "update", "kept_bytes", "state_bytes", "activation_bytes", "entering_bytes",
        )}
        self._sums = {key: list(accumulate(column, initial=0)) for key, column in columns.items()}
        names = ("forward", "backward") if self.waits_for_all else ("forward", "backward", "host")
        for choice in choices:
            for again in (False, True):
                added = (*names, "recompute") if again else names
                parts = [self._sums[name, choice if name != "host" else 0] for name in added]
                self._busy[choice, again] = [sum(values) for values in zip(*parts, strict=True)]
        self._crossing = [[] for _ in self.units]
        for edge in self.edges:
            ends = (edge.maker, *edge.readers)
            for cut in range(min(ends) + 1, max(ends) + 1):
                self._crossing[cut].append(edge)

    def total(self, name: str, begin: int, end: int, choice: int = 0) -> float:
        """Return the sum of an attribute over a run of units."""
        sums = self._sums[name, choice]
        return sums[end] - sums[begin]

    def least_micro_batches(self, num_stages: int) -> int:
        """Return the micro-batches that fill a pipeline, or what the user asks for if that is more."""
        return max(self.micro_batches, (2 if self.is_training else 1) * (num_stages - 1) + 1)

    def spans(self, begins: Sequence[int]) -> list[Span]:
        """Return first unit, end and distance to the last stage of each stage."""
        ends = [*begins[1:], len(self.units)]
        return [(b, e, len(begins) - 1 - stage) for stage, (b, e) in enumerate(zip(begins, ends, strict=True))]

    # ------------------------------------------------------------------ time
    def legs(self, begin: int, end: int, kind: str, ipu: int) -> tuple[float, float]:
        """Return the cycles of the forward and of the backward of a stage, with what it recomputes."""
        choice = self.choice_by_ipu[ipu] if ipu < len(self.choice_by_ipu) else 0
        again = self.total("recompute", begin, end, choice) if kind != NONE else 0
        return self.total("forward", begin, end, choice), self.total("backward", begin, end, choice) + again

    def steady(self, begin: int, end: int, kind: str, ipu: int) -> float:
        """Return what a stage takes in a cycle of the full pipeline."""
        sums = self._busy[self.choice_by_ipu[ipu] if ipu < len(self.choice_by_ipu) else 0, kind != NONE]
        return sums[end] - sums[begin]

    def cycles(self, begins: Sequence[int], ipus: Sequence[int], kinds: Sequence[str], off_chip: bool) -> float:
        """Return a micro-batch's share of the cycles of an update, from the schedule row by row."""
        spans = self.spans(begins)
        legs = [self.legs(b, e, kind, ipu) for (b, e, _), kind, ipu in zip(spans, kinds, ipus, strict=True)]
        waits = [self.total("host", begin, end) for begin, end, _ in spans]
        micro_batches = self.least_micro_batches(len(begins))
        updates: dict[int, float] = {}
        for (begin, end, _), ipu in zip(spans, ipus, strict=True):
            updates[ipu] = updates.get(ipu, 0) + self._update(begin, end, off_chip)
        total = max(updates.values())
        if len(begins) == 1:
            return sum(legs[0]) + waits[0] + total / micro_batches
        sends = self.sends(begins, ipus)
        total += self._link(sends.get((0, Leg.UPDATE), {}))
        sync = sync_cycles(self.target, "replica") if len(updates) > 1 else 0
        for row, times in _rows(tuple(ipus), micro_batches, self.execution, self.is_training):
            streams = [sum(waits[stage] for stage, leg in cell if leg is Leg.FORWARD) for cell in row]
            computes = [sum(legs[stage][leg is Leg.BACKWARD] for stage, leg in cell) for cell in row]
            together = max(streams) + max(computes)
            apart = max(one + other for one, other in zip(streams, computes, strict=True))
            sent: Traffic = {}
            for cell in row:
                for action in cell:
                    for pair, count in sends.get(action, {}).items():
                        sent[pair] = sent.get(pair, 0) + count
            total += times * (sync + self._link(sent) + (together if self.waits_for_all else apart))
        return total / micro_batches

    def _update(self, begin: int, end: int, off_chip: bool) -> float:
        """Return the cycles of the update of a stage's weights."""
        moved = 2 * self.state_share * self.total("state_bytes", begin, end)
        is_off_chip = off_chip or self.states_off_chip
        return self.total("update", begin, end) + (streaming_cycles(self.target, int(moved)) if is_off_chip else 0)

    def _link(self, sent: Traffic) -> float:
        return link_cycles(self.target, max(sent.values(), default=0))

    def sends(self, begins: Sequence[int], ipus: Sequence[int]) -> dict[tuple[int, Leg], Traffic]:
        """Return what each leg of each stage sends to which IPU; weights, once an update, under the first stage."""
        stage_of = [stage for stage, (begin, end, _) in enumerate(self.spans(begins)) for _ in range(end - begin)]
        sends: dict[tuple[int, Leg], Traffic] = {}
        seen: set[int] = set()
        for cut in begins[1:]:
            for edge in self._crossing[cut]:
                if id(edge) in seen:
                    continue
                seen.add(id(edge))
                stage = stage_of[edge.maker]
                home = ipus[stage]
                away = {ipus[stage_of[reader]] for reader in edge.readers} - {home}
                if away:
                    sent = sends.setdefault((0 if edge.leg is Leg.UPDATE else stage, edge.leg), {})
                    for ipu in away:
                        sent[home, ipu] = sent.get((home, ipu), 0) + edge.count_bytes
        return sends

    # ------------------------------------------------------------------ memory
    def resolved(self, span: Span, mode: str, off_chip: bool, beside: Part | None = None) -> str:
        """Return what one stage recomputes in a mode, where its IPU computes at most one other."""
        if mode == STAGE and span[2] == 0:
            return NONE
        if mode == SOME:
            rest = () if beside is None else (beside,)
            return NONE if self.holds(((span, NONE), *rest), off_chip) else ALL
        return mode

    def kinds(self, begins: Sequence[int], ipus: Sequence[int], mode: str, off_chip: bool) -> tuple[str, ...]:
        """Return what each stage recomputes in a mode: in ``SOME``, on each IPU as little as fits."""
        spans = self.spans(begins)
        if mode != SOME:
            return tuple(self.resolved(span, mode, off_chip) for span in spans)
        kinds = [ALL] * len(begins)
        for ipu in set(ipus):
            mine = [stage for stage, one in enumerate(ipus) if one == ipu]
            best = float("inf")
            for tried in product((NONE, ALL), repeat=len(mine)):
                again = (spans[s] for s, kind in zip(mine, tried, strict=True) if kind == ALL)
                spent = sum(self.total("recompute", begin, end) for begin, end, _ in again)
                parts = tuple((spans[s], kind) for s, kind in zip(mine, tried, strict=True))
                if spent < best and self.holds(parts, off_chip):
                    best = spent
                    for stage, kind in zip(mine, tried, strict=True):
                        kinds[stage] = kind
        return tuple(kinds)

    def fits(
        self, begins: Sequence[int], ipus: Sequence[int], kinds: Sequence[str], off_chip: bool, *, margin: float = 0.0,
    ) -> bool:
        """Whether all IPUs hold their stages, by estimate and by what trials have shown."""
        return all(self.holds(parts, off_chip, margin=margin) for parts in self.parts(begins, ipus, kinds).values())

    def parts(self, begins: Sequence[int], ipus: Sequence[int], kinds: Sequence[str]) -> dict[int, tuple[Part, ...]]:
        """Return the stages of each IPU."""
        found: dict[int, tuple[Part, ...]] = {}
        for span, ipu, kind in zip(self.spans(begins), ipus, kinds, strict=True):
            found[ipu] = (*found.get(ipu, ()), (span, kind))
        return found

    def holds(self, parts: Sequence[Part], off_chip: bool, *, margin: float = 0.0) -> bool:
        """Whether an IPU holds these stages, or would with a part more of its memory."""
        needed = self.tile_bytes(parts, off_chip) + self._beyond(parts, off_chip)
        return needed <= self.target.tile_memory_bytes * (1 + margin)

    def learn(self, parts: Sequence[Part], off_chip: bool, needed: float) -> None:
        """Note what a tile of an IPU with these stages needs."""
        self._guessed.clear()
        likeness = off_chip, tuple((span[2], kind) for span, kind in parts)
        self.learnt_bytes[likeness] = needed - self.tile_bytes(parts, off_chip)

    def _beyond(self, parts: Sequence[Part], off_chip: bool) -> float:
        """Return what was learnt of stages like these, else of others at their place, else of others anywhere."""
        likeness = off_chip, tuple([(span[2], kind) for span, kind in parts])
        if likeness not in self._guessed:
            self._guessed[likeness] = self._guess(likeness)
        return self._guessed[likeness]

    def _guess(self, likeness: Likeness) -> float:
        if likeness in self.learnt_bytes:
            return self.learnt_bytes[likeness]
        near = [count for (_, places), count in self.learnt_bytes.items()
                if [place for place, _ in places] == [place for place, _ in likeness[1]]]
        return max(near or self.learnt_bytes.values(), default=self.unlearnt_bytes)

    def tile_bytes(self, parts: Sequence[Part], off_chip: bool) -> float:
        """Return what a tile of an IPU needs for its stages by estimate, every tensor being spread evenly."""
        needed = sum([self._stage_bytes(span, kind, off_chip) for span, kind in parts])
        if len(parts) > 1:  # they share weights
            held = [self._weights_of(begin, end) for (begin, end, _), _ in parts]
            once = {tensor: count for weights in held for tensor, count in weights.items()}
            needed -= sum(sum(weights.values()) for weights in held) - sum(once.values())
        return needed / self.target.num_tiles

    def _weights_of(self, begin: int, end: int) -> dict[object, int]:
        if (begin, end) not in self._weights:
            units = self.units[begin:end]
            self._weights[begin, end] = {tensor: tensor.device_bytes for unit in units for tensor in unit.weights}
        return self._weights[begin, end]

    def _stage_bytes(self, span: Span, kind: str, off_chip: bool) -> float:
        key = (span, kind, off_chip)
        if key not in self._needed:
            self._needed[key] = self._counted(span, kind, off_chip)
        return self._needed[key]

    def _counted(self, span: Span, kind: str, off_chip: bool) -> float:
        begin, end, distance = span
        states = self.total("state_bytes", begin, end)
        kept = self.total("kept_bytes", begin, end) - states
        kept += 0 if self.states_off_chip or off_chip else states * self.state_share
        depth = 2 * distance + 1 if self.is_training else 1
        entering = self.units[begin].entering_bytes
        if kind == NONE:
            held = depth * (self.total("activation_bytes", begin, end) + entering)
        elif kind == STAGE:
            held = depth * entering + self.total("activation_bytes", begin, end)
        else:
            # Blocks begin where larger modules do.
            blocks = [begin, *(unit for unit in sorted(self.whole) if begin < unit < end), end]
            made = [self.total("activation_bytes", *pair) for pair in pairwise(blocks)]
            held = depth * sum(self.units[block].entering_bytes for block in blocks[:-1]) + max(made)
        return sum(self._weights_of(begin, end).values()) + kept + held


@lru_cache(maxsize=512)
def _rows(
    ipus: tuple[int, ...], micro_batches: int, execution: str, is_training: bool,
) -> tuple[tuple[tuple[Cell, ...], int], ...]:
    """Return the distinct rows of a schedule without its updates, and how often each occurs."""
    few = 4 * len(ipus) + 1
    if execution != "pipelined" or micro_batches <= few:
        return tuple(_counted_rows(ipus, micro_batches, execution, is_training).items())
    # A further micro-batch is a further row of the full pipeline.
    rows, more = (_counted_rows(ipus, count, execution, is_training) for count in (few, few + 1))
    for row, times in (more - rows).items():
        rows[row] += times * (micro_batches - few)
    return tuple(rows.items())


def _counted_rows(
    ipus: tuple[int, ...], micro_batches: int, execution: str, is_training: bool,
) -> Counter[tuple[Cell, ...]]:
    schedule = make_schedule(len(ipus), ipus, micro_batches, execution, is_training)
    return Counter(row for row in map(_without_updates, schedule.steps) if any(row))


def _without_updates(row: Iterable[Iterable[object]]) -> tuple[Cell, ...]:
    return tuple(tuple((a.stage, a.leg) for a in cell if a.leg is not Leg.UPDATE) for cell in row)  # type: ignore[attr-defined]
