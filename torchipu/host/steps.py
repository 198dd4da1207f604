"""The steps of a host plan, the order in which they run, and for how long what they touch is kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torchipu._kernels.table.kernel import AnyKernel
from torchipu._kernels.table.round_blocks import Kept
from torchipu.host.storage import Allocation, Place
from torchipu.ir.graph import Op
from torchipu.ir.types import Leg
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor, Rounding
from torchipu.optable.planner import Joining, Mark
from torchipu.optable.samples import Samples
from torchipu.optable.transfer import is_of_prologue


@dataclass(frozen=True, slots=True)
class Ending:
    """The rounding of one output within the step that computes it.

    Attributes:
        place: Which output, of floats.
        halves: What takes the halves.
        rounding: How they are rounded.
        blocks: Which elements of the result each item writes.
        begins: Which element of the result the step's output begins with.
        item_floats: How many an item leaves side by side, which then need no memory beside scratch; 0 where they do.
        is_last: Whether no other step of the op looks at the floats.
        keeps: What is left of the result.
    """

    place: int
    halves: HostTensor
    rounding: Rounding
    blocks: Blocks
    begins: int = 0
    item_floats: int = 0
    is_last: bool = False
    keeps: Kept = Kept.HALVES


@dataclass(slots=True, eq=False)
class Step:
    """One kernel call, one call of Python, or one jump, before it has a number in the engine.

    Attributes:
        op: The op it belongs to, for error messages.
        kernel: The host kernel, or None for the generic codelet, which calls ATen, and for jumps.
        outputs: Storage written.
        inputs: Storage read.
        is_update: Runs after the last micro-batch.
        is_reset: Runs before the first micro-batch of a replica.
        mark: The mark that lies here, for a step that does nothing else.
        goes_to: Where a jump leads, unless the boolean that it reads is true.
        together: Runs once for all replicas.
        adds_up: Adds onto what it writes, an item of it onto a part that depends on the item alone.
        joining: Makes one call for several runs of it, None where there is no such call.
        writes: What of each output the items write, as far as it is known.
        endings: How outputs become halves within the step.
        is_fold: Runs after the last micro-batch of each replica.
        signals: Tells that a bucket of sums is complete, through a descriptor that the executor knows.
        waits_for: The bucket of sums that the step waits for; it does nothing else.
        overwrites: For each output the inputs that may lie where it does: each element is read before it is written.
            Nothing where that is not known, or where the step may refuse a value.
        samples: How its items share out samples, each of which is computed by itself; None where that is not known.
        rounds: In how many equal parts the items are made, one after another: later ones read what earlier ones made.
        is_there: Whether a plan has the step: until its sizes are known a number computed of these, 0 where not.
    """

    op: Op | None
    kernel: AnyKernel | None
    outputs: tuple[HostTensor, ...]
    inputs: tuple[HostTensor, ...]
    ints: Sequence[Any] = ()
    scalars: Sequence[Any] = ()
    items: int = 1
    grain: int = 1
    scratch_bytes: int = 0
    reads_outputs: bool = False
    is_update: bool = False
    is_reset: bool = False
    is_hoistable: bool = True
    mark: Mark | None = None
    goes_to: Mark | None = None
    together: bool = False
    adds_up: bool = False
    joining: Joining | None = None
    writes: tuple[Blocks | None, ...] = ()
    endings: tuple[Ending, ...] = ()
    is_fold: bool = False
    signals: bool = False
    waits_for: int | None = None
    samples: Samples | None = None
    overwrites: tuple[frozenset[int], ...] = ()
    rounds: int = 1
    is_there: Any = True

    def become(self, other: Step) -> None:
        """Call what another step calls, in the place and for the op of this one."""
        self.kernel, self.outputs, self.inputs = other.kernel, other.outputs, other.inputs
        self.ints, self.scalars, self.items, self.grain = other.ints, other.scalars, other.items, other.grain
        self.scratch_bytes, self.samples, self.overwrites = other.scratch_bytes, other.samples, other.overwrites
        self.writes = other.writes

    @property
    def written(self) -> tuple[HostTensor, ...]:
        """All memory that the step writes."""
        if not self.endings:
            return self.outputs
        gone = {ending.place for ending in self.endings if ending.item_floats}
        kept = tuple(held for place, held in enumerate(self.outputs) if place not in gone)
        return (*kept, *(ending.halves for ending in self.endings if ending.keeps is not Kept.FLOATS))

    @property
    def read(self) -> tuple[HostTensor, ...]:
        """All memory that the step reads."""
        if not self.endings:
            return self.inputs
        random = (ending.rounding.random for ending in self.endings)
        return (*self.inputs, *(held for held in random if held is not None))

    @property
    def is_generic(self) -> bool:
        """Whether the step calls ATen."""
        return self.kernel is None and self.mark is None and self.goes_to is None and self.waits_for is None


@dataclass(frozen=True, slots=True)
class Parts:
    """The steps of a plan in the order in which they run.

    Attributes:
        hoisted: Before the first micro-batch, as they depend on states alone, or bring a state from another process.
        reset: Before the first micro-batch of each replica.
        body: For each micro-batch of each replica.
        fold: After the last micro-batch of each replica.
        update: After all of them.
    """

    hoisted: list[Step]
    reset: list[Step]
    body: list[Step]
    fold: list[Step]
    update: list[Step]

    def each(self) -> tuple[list[Step], ...]:
        """Return the steps of each part, in the order in which they run."""
        return self.hoisted, self.reset, self.body, self.fold, self.update


def in_order(
    steps: Sequence[Step], allocations: Sequence[Allocation], *, is_hoisting: bool, frozen: Collection[int],
    random_slots: int | None,
) -> Parts:
    """Put resets and hoisted steps first, then the body, then the update.

    Args:
        steps: As they were emitted; what they are and what they write is noted on them and on the allocations.
        allocations: By number.
        is_hoisting: Whether steps that no micro-batch changes are run before the first one.
        frozen: Numbers of the graph's inputs that seldom change.
        random_slots: The allocation of random words, which change with every micro-batch.

    Returns:
        The steps of each part.
    """
    for number, step in enumerate(steps):
        step.is_update = step.op is not None and step.op.leg is Leg.UPDATE and not step.is_fold
        step.is_reset = step.op is not None and step.op.target == "ipu.fill_zero.default"
        for written in step.written:
            allocations[written.buffer].writers.append(number)
    hoisted = _find_hoisted(steps, allocations, frozen, random_slots) if is_hoisting else set()
    # The write-back of states changed by the body comes last in the list, without an op: it is body.
    early = [s for n, s in enumerate(steps) if n in hoisted or is_of_prologue(s.op)]
    reset = [s for s in steps if s.is_reset]
    fold = [s for s in steps if s.is_fold]
    update = [s for n, s in enumerate(steps) if s.is_update and not s.is_reset and n not in hoisted]
    taken = {id(s) for s in (*early, *reset, *fold, *update)}
    return Parts(early, reset, [s for s in steps if id(s) not in taken], fold, update)


def _find_hoisted(
    steps: Sequence[Step], allocations: Sequence[Allocation], frozen: Collection[int], random_slots: int | None,
) -> set[int]:
    """Return the steps whose inputs no micro-batch changes; a greatest fixed point."""
    hoisted = {
        n for n, s in enumerate(steps)
        if s.is_hoistable and not s.is_update and not s.is_reset and not s.is_fold and s.op is not None
    }

    def is_invariant(step: Step) -> bool:
        for tensor in step.read:
            allocation = allocations[tensor.buffer]
            if tensor.buffer == random_slots:
                return False
            if allocation.place is Place.INPUT and allocation.index not in frozen:
                return False
            if any(
                w not in hoisted and not (steps[w].is_update or steps[w].is_fold or is_of_prologue(steps[w].op))
                for w in allocation.writers
            ):
                return False
        return all(
            allocations[t.buffer].place is Place.ARENA and all(w in hoisted for w in allocations[t.buffer].writers)
            for t in step.written
        )

    changed = True
    while changed:
        changed = False
        for number in sorted(hoisted):
            if not is_invariant(steps[number]):
                hoisted.discard(number)
                changed = True
    return hoisted


def find_lifetimes(
    steps: Sequence[Step], allocations: Sequence[Allocation], outputs: Sequence[HostTensor], *,
    kept_until: int | None, num_prologue: int, is_apart: bool, loops: Sequence[tuple[Step, Step]],
) -> None:
    """Note on each allocation the first and the last step that needs it.

    Args:
        steps: In the order in which they run.
        allocations: By number.
        outputs: What the caller is given at the end.
        kept_until: The step up to which what the prologue makes is kept; None where nothing is hoisted.
        num_prologue: Steps run before the first micro-batch.
        is_apart: Whether what these make is no part of the arena, of which there may be several.
        loops: First and last step of each loop, inner ones first.
    """
    for number, step in enumerate(steps):
        for tensor in (*step.written, *step.read):
            allocation = allocations[tensor.buffer]
            if allocation.first < 0:
                allocation.first = number
            allocation.last = number
    for allocation in allocations:
        if 0 <= allocation.first < num_prologue and kept_until is not None:
            allocation.last = max(allocation.last, kept_until)
            if allocation.place is Place.ARENA and is_apart:
                allocation.place = Place.PREPARED
    _keep_through_loops(steps, allocations, loops)
    for held in outputs:
        allocations[held.buffer].last = len(steps)


def _keep_through_loops(
    steps: Sequence[Step], allocations: Sequence[Allocation], loops: Sequence[tuple[Step, Step]],
) -> None:
    """Let what a loop shares with the steps around it live through all its trips; inner loops end first."""
    number = {id(step): position for position, step in enumerate(steps)}
    for first, last in loops:
        begin, end = number[id(first)], number[id(last)]
        for allocation in allocations:
            outside = allocation.first < begin or allocation.last > end
            if allocation.first >= 0 and outside and allocation.first <= end and allocation.last >= begin:
                allocation.first, allocation.last = min(allocation.first, begin), max(allocation.last, end)
