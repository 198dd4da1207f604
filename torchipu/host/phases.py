"""Which steps run between two meetings of all threads, and which of them a thread runs one after another.

A phase is what threads share out between two meetings. It holds strands, none of which needs what another one makes.
A strand is one step, whose chunks are its units, or several: steps of one chunk each, or steps of which samples go
through one after another, so that a unit is a chunk of samples that stays in the cache of its thread. All of this
follows from shapes; which thread runs a unit has no effect on what it computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import lcm, prod

from torchipu.host.steps import Step
from torchipu.host.storage import Allocation, Place
from torchipu.host.unit_memory import Near, Ownership, lie_apart, near_arguments, touched_by, window
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.samples import Samples

OPEN_PHASES = 4
"""Phases back to which a step may move. More would hold memory for longer, and searching them takes time."""
CACHE_BYTES = 1 << 19
"""What steps may touch for a chunk of samples that goes through all of them: half of a second-level cache."""
LEAST_UNITS = 4
"""Chunks of samples below which a step is rather shared out by itself: fewer keep fewer threads busy."""
MOST_STEPS = 32
"""Steps of a strand. Joining takes time for each of them."""
LEAST_BYTES = 1 << 15
"""What strands of one unit each have to touch, beside the largest of them, so that threads meet for them."""

Segment = tuple[int, int, tuple[tuple[tuple[int, tuple[tuple[int, int, Near], ...]], ...], ...]]
"""First step, the step behind the last, and phases of strands ``(units, ((step, items of a unit, near), ...))``."""


@dataclass(slots=True)
class Member:
    """A step of a strand.

    Attributes:
        step: The step.
        number: Its place in the order in which steps were emitted.
        samples: How samples go through it, counted as the strand counts them; None where that is not known.
        items_each: Items of a group of samples; the last group may have fewer.
    """

    step: Step
    number: int
    samples: Samples | None
    items_each: int = 1


@dataclass(slots=True)
class Strand:
    """Steps of which a thread runs a unit one after another.

    Attributes:
        members: In the order in which they were emitted.
        units: Shares of all of them.
        chunk: Samples of a unit; 0 where units are chunks of the only step, or the strand is one unit.
        read: Allocations that are read.
        written: Allocations that are written.
    """

    members: list[Member]
    units: int
    chunk: int = 0
    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for member in self.members:
            self.read |= {held.buffer for held in member.step.read}
            self.written |= {held.buffer for held in member.step.written}

    def per_unit(self, member: Member) -> int:
        """Return how many items of a step a unit has."""
        if not self.chunk:
            return member.step.grain if len(self.members) == 1 else member.step.items
        assert member.samples is not None
        return self.chunk // member.samples.each * member.items_each


@dataclass(slots=True)
class Phase:
    """Strands that do not need each other.

    Attributes:
        strands: In no order.
        touching: For each allocation those that read or write it.
    """

    strands: list[Strand] = field(default_factory=list)
    touching: dict[int, list[Strand]] = field(default_factory=dict)

    def conflicting(self, strand: Strand) -> list[Strand]:
        """Return those that write what another one touches, or touch what that writes."""
        found: dict[int, Strand] = {}
        for buffer in strand.written | strand.read:
            for other in self.touching.get(buffer, ()):
                if buffer in strand.written or buffer in other.written:
                    found[id(other)] = other
        return list(found.values())

    def add(self, strand: Strand, instead_of: Sequence[Strand] = ()) -> None:
        """Add a strand, which takes the place of others."""
        for other in instead_of:
            self.strands = [kept for kept in self.strands if kept is not other]
            for buffer in other.written | other.read:
                self.touching[buffer] = [kept for kept in self.touching[buffer] if kept is not other]
        self.strands.append(strand)
        for buffer in strand.written | strand.read:
            self.touching.setdefault(buffer, []).append(strand)

    def ordered(self) -> list[Strand]:
        """Return those with most units first, which take longest; as one strand what is not worth a meeting."""
        members = sorted((member for strand in self.strands for member in strand.members), key=lambda m: m.number)
        if all(strand.units == 1 for strand in self.strands):
            touched = [_bytes_of(strand.members) for strand in self.strands]
            if sum(touched) - max(touched) <= LEAST_BYTES:
                return [Strand(members, 1)]
        return sorted(self.strands, key=lambda strand: (-strand.units, strand.members[0].number))


@dataclass(slots=True)
class Phases:
    """The phases of a run of neighbouring steps."""

    phases: list[Phase] = field(default_factory=list)

    def add(self, step: Step, number: int, *, is_last: bool) -> None:
        """Put a step into the earliest open phase behind all that it depends on, or into a strand of the last of it.

        Args:
            step: The step.
            number: Its place in the order in which steps were emitted.
            is_last: Whether no step behind it needs what it makes: then others need not wait for it.
        """
        samples = _divided(step)
        items_each = 1 if samples is None else step.items // samples.groups
        strand = Strand([Member(step, number, samples, items_each)], max(1, -(-step.items // step.grain)))
        open_from = max(0, len(self.phases) - OPEN_PHASES)
        at, found = open_from, list[Strand]()
        for index in range(len(self.phases) - 1, open_from - 1, -1):
            found = self.phases[index].conflicting(strand)
            if found:
                at = index
                break
        joined = joined_strand([*found, strand]) if found and not (is_last and strand.units == 1) else None
        if joined is not None:
            self.phases[at].add(joined, found)
            return
        at += bool(found)
        if at == len(self.phases):
            self.phases.append(Phase())
        self.phases[at].add(strand)

    def ordered(self) -> list[list[Strand]]:
        """Return the strands of every phase."""
        return [phase.ordered() for phase in self.phases]


def _divided(step: Step) -> Samples | None:
    """Return how samples go through a step, if they can be shared out in groups of as many items each."""
    samples = step.samples
    if samples is None or samples.count < LEAST_UNITS or step.items % samples.groups:
        return None
    return samples


def joined_strand(strands: Sequence[Strand]) -> Strand | None:
    """Return strands as one whose units go through all of them; None where they cannot, or should not."""
    members = sorted((member for strand in strands for member in strand.members), key=lambda member: member.number)
    if len(members) > MOST_STEPS:
        return None
    if len(strands) == 2 and all(strand.units == 1 for strand in strands):
        return Strand(members, 1)
    counted = _divided_alike(members)
    if counted is None:
        return None
    chunk = _chunk(counted)
    units = -(-_samples(counted[0]).count // chunk)
    # What was shared out among many threads stays so.
    if units < LEAST_UNITS or 2 * units < max(min(strand.units, 2 * LEAST_UNITS) for strand in strands):
        return None
    return Strand(counted, units, chunk) if _touched_bytes(counted, chunk) <= CACHE_BYTES else None


def _samples(member: Member) -> Samples:
    assert member.samples is not None
    return member.samples


def _divided_alike(members: Sequence[Member]) -> list[Member] | None:
    """Return members that divide what they hand to each other into the same samples, as many as can be; else None."""
    if any(member.samples is None for member in members):
        return None
    shared = _handed_on(members)
    if shared is None:
        return None
    most = min(_samples(member).count for member in members)
    counted = _counted_alike(members, most)
    if counted is not None and _meet_in_samples(counted, shared):
        return counted
    fewer = {count for member in members for count in _samples(member).coarser() if LEAST_UNITS <= count < most}
    for count in sorted(fewer, reverse=True):
        counted = _counted_alike(members, count)
        if counted is not None and _meet_in_samples(counted, shared):
            return counted
    return None


def _handed_on(members: Sequence[Member]) -> set[int] | None:
    """Return what one step writes and another one touches; None where some of it can be divided into no samples."""
    touching: dict[int, int] = {}
    written: set[int] = set()
    undivided: set[int] = set()
    for member in members:
        step, samples = member.step, _samples(member)
        own = touched_by(step)
        for buffer in own:
            touching[buffer] = touching.get(buffer, 0) + 1
        written.update(held.buffer for held in step.written)
        arguments = (*step.outputs, *step.inputs)
        following = samples.following or (None,) * len(arguments)
        undivided.update(
            held.buffer for held, stride, apart in zip(arguments, samples.strides, following, strict=True)
            if not stride and apart is None
        )
        if step.endings:  # what they take and write
            undivided.update(own.difference(held.buffer for held in arguments))
    shared = {buffer for buffer in written if touching[buffer] > 1}
    return shared if shared.isdisjoint(undivided) else None


def _counted_alike(members: Sequence[Member], count: int) -> list[Member] | None:
    """Return members that count so many samples, as sentences where some steps count words; None if one cannot."""
    counted = []
    for member in members:
        finer = _samples(member)
        if finer.count == count:
            counted.append(member)
            continue
        samples = finer.counted(count)
        if samples is None:
            return None
        items_each = member.items_each * finer.groups_together(count)
        counted.append(Member(member.step, member.number, samples, items_each))
    return counted


def _chunk(members: Sequence[Member]) -> int:
    """Return the samples of a unit: as many as the steps with most work for each take at once by themselves."""
    least = min(
        max(1, m.step.grain * _samples(m).each // m.items_each) for m in members
    )
    whole = lcm(*(_samples(m).each for m in members))
    return -(-least // whole) * whole


def _meet_in_samples(members: Sequence[Member], shared: Collection[int]) -> bool:
    """Whether allocations are divided into the same samples wherever they are touched."""
    divisions: dict[int, set[tuple[int, int, int]]] = {buffer: set() for buffer in shared}
    for member in members:
        samples = _samples(member)
        for held, stride in zip((*member.step.outputs, *member.step.inputs), samples.strides, strict=True):
            if held.buffer in divisions:
                divisions[held.buffer].add(window(held, stride, samples.count))
    return all(lie_apart(found) for found in divisions.values())


def _bytes_there(held: HostTensor) -> int:
    """Return the bytes of a value, of one that is repeated those that are there once."""
    there = (size for size, stride in zip(held.shape, held.strides, strict=True) if stride)
    return prod(there) * held.dtype.host_bytes


def _bytes_of(members: Sequence[Member]) -> int:
    """Return the bytes of all arguments."""
    return sum(
        held.num_elements * held.dtype.host_bytes
        for member in members for held in (*member.step.outputs, *member.step.inputs)
    )


def _touched_bytes(members: Sequence[Member], chunk: int) -> int:
    """Return the bytes that a unit reads and writes."""
    touched: dict[int, int] = {}
    for member in members:
        arguments, samples = (*member.step.outputs, *member.step.inputs), _samples(member)
        picked = samples.picked or (0,) * len(arguments)
        for held, stride, few in zip(arguments, samples.strides, picked, strict=True):
            whole = _bytes_there(held)
            part = stride * chunk or min(whole, few * chunk or whole)
            touched[held.buffer] = max(touched.get(held.buffer, 0), part)
    return sum(touched.values())


# --------------------------------------------------------------------------- of a plan
def _stands_alone(step: Step, allocations: Sequence[Allocation]) -> bool:
    """Whether a step is none of those that threads may share out beside others."""
    if step.kernel is None or step.together or step.signals or step.rounds > 1:
        return True
    # Where inputs lie is the caller's: two may be one memory.
    written = [allocations[held.buffer] for held in step.written]
    return any(allocation.place is Place.INPUT and not allocation.is_apart for allocation in written)


def in_phases(
    parts: Iterable[Sequence[Step]], allocations: Sequence[Allocation], kept: Iterable[HostTensor] = (),
) -> tuple[list[list[Step]], list[Segment]]:
    """Cut the steps of a plan into phases.

    Args:
        parts: The parts of a plan that the engine runs by themselves, each in the order in which it was emitted.
        allocations: By number.
        kept: What is read when the steps have run.

    Returns:
        The steps of each part in the order of the phases, and the segments. Steps run one after another in that order
        compute the same.
    """
    ordered, segments, begin = [], list[Segment](), 0
    parts = list(parts)
    ownership = Ownership.of((step for steps in parts for step in steps), kept, allocations)
    for steps in parts:
        part: list[Step] = []
        for run in _runs(steps, allocations):
            if len(run) == 1:
                part += run
                continue
            phases = Phases()
            last_use = {held.buffer: number for number, step in enumerate(run) for held in (*step.written, *step.read)}
            for number, step in enumerate(run):
                is_last = all(last_use[held.buffer] == number for held in step.written)
                phases.add(step, number, is_last=is_last)
            first = begin + len(part)
            numbered = []
            for phase in phases.ordered():
                numbered.append(tuple(_numbered(strand, begin, part, ownership) for strand in phase))
            segments.append((first, begin + len(part), tuple(numbered)))
        ordered.append(part)
        begin += len(part)
    return ordered, segments


def _runs(steps: Sequence[Step], allocations: Sequence[Allocation]) -> Iterable[list[Step]]:
    """Yield neighbouring steps that may be cut into phases together, and each other step by itself."""
    run: list[Step] = []
    for step in steps:
        if not _stands_alone(step, allocations):
            run.append(step)
            continue
        if run:
            yield run
        yield [step]
        run = []
    if run:
        yield run


def _numbered(
    strand: Strand, begin: int, part: list[Step], ownership: Ownership,
) -> tuple[int, tuple[tuple[int, int, Near], ...]]:
    """Append the steps of a strand to a part and return the strand by their numbers."""
    members = []
    near: list[Near] = [()] * len(strand.members)
    if strand.chunk:
        near = near_arguments([(m.step, _samples(m)) for m in strand.members], strand.chunk, ownership)
    for member, arguments in zip(strand.members, near, strict=True):
        per_unit = strand.per_unit(member)
        if strand.chunk:
            member.step.grain = per_unit
        elif len(strand.members) > 1:
            per_unit = -(-per_unit // member.step.grain) * member.step.grain
        members.append((begin + len(part), per_unit, arguments))
        part.append(member.step)
    return strand.units, tuple(members)


def widen_lifetimes(allocations: Sequence[Allocation], segments: Sequence[Segment]) -> None:
    """Keep what a phase touches through all of it, unless one thread runs its steps one after another."""
    first_of: dict[int, int] = {}
    last_of: dict[int, int] = {}
    for _, _, phases in segments:
        for phase in phases:
            if len(phase) == 1 and phase[0][0] == 1:
                continue
            numbers = [number for _, members in phase for number, _, _ in members]
            for number in numbers:
                first_of[number], last_of[number] = min(numbers), max(numbers)
    for allocation in allocations:
        if allocation.first >= 0:
            allocation.first = first_of.get(allocation.first, allocation.first)
            allocation.last = last_of.get(allocation.last, allocation.last)
