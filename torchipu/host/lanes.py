"""Which micro-batches and replicas of a host plan run side by side, step by step, and how their calls may go."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu._kernels.abi import APART, IN_ITEMS, IN_TURN
from torchipu.host.plan import HostPlan
from torchipu.host.steps import Step
from torchipu.host.storage import Allocation, Place, aligned
from torchipu.optable.planner import Joined

MOST_LANES = 16
LARGE_BYTES = 8 << 20
"""A lane that needs more memory has steps long enough for all threads by themselves. A guess, not measured."""
CACHE_BYTES = 2 << 20
"""What lanes may hold for each thread: about a second cache. With half of it fewer products are joined, and a
perceptron took one to two hundredths longer with micro-batches of 16. With twice as much nothing was gained."""

_OF_A_LANE = (Place.ARENA, Place.OUTPUT, Place.BANK)
_OF_SUMS = (Place.STATE, Place.ACCUMULATOR, Place.PARTIAL, Place.SIGNAL)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Runs of the body that go side by side, each in an arena of its own.

    Attributes:
        micro_batches: Neighbouring micro-batches.
        replicas: Neighbouring replicas of each.
    """

    micro_batches: int = 1
    replicas: int = 1

    @property
    def count(self) -> int:
        """Lanes in all."""
        return self.micro_batches * self.replicas


def choose_lanes(plan: HostPlan, micro_batches: int, replicas: int, threads: int) -> Lanes:
    """Return the lanes of a plan: enough for all threads, as many as a cache holds.

    Values are the same for any choice: each lane computes what it would by itself, and what several of them add up is
    added in the order of the micro-batches, replica after replica.

    Args:
        plan: The host plan.
        micro_batches: Micro-batches of an iteration.
        replicas: Replicas of each.
        threads: Host threads.
    """
    body = plan.steps[plan.num_prologue : plan.num_prologue + plan.num_body]
    lane_bytes = max(1, aligned(plan.arena_bytes))
    if micro_batches * replicas == 1 or lane_bytes > LARGE_BYTES or not _are_independent(plan, body):
        return Lanes()
    most = min(MOST_LANES, max(threads if threads > 1 else 0, CACHE_BYTES * threads // lane_bytes))
    most -= most % threads if most > threads else 0  # every thread has as many
    if most < 2:
        return Lanes()
    changed = {plan.allocations[held.buffer].place for step in body for held in step.written}
    # States of a replica go from one micro-batch to the next.
    beside = 1 if Place.BANK in changed else _evenly(micro_batches, min(micro_batches, most))
    # Lanes of one replica add to one accumulator, in calls that may be joined: where they keep all threads busy, the
    # other replicas come later.
    is_enough = Place.ACCUMULATOR in changed and beside >= max(2, threads)
    return Lanes(beside, 1 if is_enough else _evenly(replicas, min(replicas, most // beside)))


def _evenly(count: int, most: int) -> int:
    """Return the size of the fewest groups of at most ``most`` that are about equal."""
    groups = -(-count // most)
    return -(-count // groups)


def _are_independent(plan: HostPlan, body: list[Step]) -> bool:
    """Whether lanes meet only within single steps: where two of them touch a sum, one lane would see another's."""
    shared = set()
    touched: dict[int, int] = {}
    for step in body:
        if step.kernel is None or step.together:
            return False
        for buffer in {held.buffer for held in (*step.written, *step.read)}:
            touched[buffer] = touched.get(buffer, 0) + 1
        shared |= {h.buffer for h in step.written if plan.allocations[h.buffer].place not in _OF_A_LANE}
    return all(touched[buffer] == 1 and plan.allocations[buffer].place in _OF_SUMS for buffer in shared)


class Layout:
    """Where the lanes' parts of the arena lie, and which steps are one call for all lanes.

    What a joined call takes of neighbouring lanes lies without a gap between them, as rows of one matrix; all else of
    the arena begins on a cache line in every lane.

    Args:
        plan: The host plan.
        lanes: How many run side by side.
    """

    def __init__(self, plan: HostPlan, lanes: Lanes) -> None:
        self.lanes = lanes.count
        self._replicas = lanes.replicas
        self._allocations = plan.allocations
        self._joined: dict[Step, Joined] = {}
        self._dense: set[int] = set()
        for step in plan.steps[plan.num_prologue : plan.num_prologue + plan.num_body] if self.lanes > 1 else ():
            joined = None if step.joining is None else step.joining(self.lanes)
            if joined is None or not self._fits(step, joined):
                continue
            self._joined[step] = joined
            self._dense |= {held.buffer for held in (*step.outputs, *step.inputs)}

    def _fits(self, step: Step, joined: Joined) -> bool:
        """Whether arguments can lie as a call wants them; where inputs and outputs of the program lie is seen later."""
        for held, stride in zip((*step.outputs, *step.inputs), joined.strides, strict=True):
            allocation = self._allocations[held.buffer]
            apart = allocation.num_bytes if allocation.place in _OF_A_LANE or allocation.place is Place.INPUT else 0
            if stride != apart or allocation.place is Place.BANK:
                return False
            if allocation.place is Place.ACCUMULATOR and self._replicas > 1:
                return False
        return True

    def begin_bytes(self, allocation: Allocation) -> int:
        """Return where in its memory an allocation of the first lane begins."""
        return allocation.offset_bytes * (self.lanes if allocation.place is Place.ARENA else 1)

    def stride_bytes(self, allocation: Allocation) -> int:
        """Return how far the allocation of one lane is from that of the next, beside what its buffer advances."""
        if self.lanes == 1 or allocation.place is not Place.ARENA:
            return 0
        return allocation.num_bytes if allocation.number in self._dense else aligned(allocation.num_bytes)

    def call_of(self, step: Step) -> tuple[int, tuple[int, ...], tuple[int, ...], int, int] | None:
        """Return the call of a step for all lanes as the engine takes it; None where each lane has its own."""
        joined = self._joined.get(step)
        return None if joined is None else (self.lanes, joined.strides, joined.ints, joined.items, joined.grain)


def order_of(plan: HostPlan, step: Step) -> int:
    """Return how the lanes make the call of a step; see ``Plan.add_step`` of the engine."""
    if all(plan.allocations[held.buffer].place in _OF_A_LANE for held in step.written):
        return APART
    return IN_ITEMS if step.adds_up else IN_TURN
