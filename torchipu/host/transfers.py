"""Steps that hand a value to another process or take one from it, and the parts of a body between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchipu.host.steps import Step
from torchipu.host.storage import Allocation, Place
from torchipu.ir.graph import Op
from torchipu.optable.transfer import is_transfer

Carrier = Callable[[Op], Callable[[int], None]]
"""Makes what carries out the transfer of an op, given the address of the value."""


_LASTING = (Place.STATE, Place.BANK, Place.ACCUMULATOR, Place.PARTIAL)


@dataclass(frozen=True, slots=True)
class Order:
    """In which order the parts of a body run; see ``Plan.run`` of the engine.

    Attributes:
        rows: ``[parts, 5]``: first step, the step after the last, micro-batch, replica, lane.
        lanes: Lanes, each with an arena of its own.
    """

    rows: np.ndarray
    lanes: int

    def lane_of(self, micro_batch: int, replica: int) -> int:
        """Return the lane in which a micro-batch of a replica runs."""
        of_run = (self.rows[:, 2] == micro_batch) & (self.rows[:, 3] == replica)
        return int(self.rows[of_run][0, 4])


def ordered(
    runs: Sequence[tuple[int, int, int]], segments: Sequence[tuple[int, int]], replicas: int, lanes: int,
) -> Order:
    """Return the order of parts of a body.

    Args:
        runs: Segment, run (micro-batch x replicas + replica) and lane, in the order in which they run.
        segments: First step of each segment, and the step after its last.
        replicas: Replicas.
        lanes: Number of lanes.
    """
    rows = [(*segments[segment], *divmod(run, replicas), lane) for segment, run, lane in runs]
    return Order(np.array(rows, np.int64).reshape(-1, 5), lanes)


def write_back_early(body: list[Step], allocations: Sequence[Allocation]) -> list[Step]:
    """Put the copies that write states back, at the end of a body, right behind the last step that they wait for.

    States are then touched between two transfers, and micro-batches may run beside each other.
    """
    for step in [step for step in body if step.op is None and _writes_state(step, allocations)]:
        body.remove(step)
        touched = {held.buffer for held in (*step.written, *step.read)}
        place = 1 + max(
            (n for n, other in enumerate(body) if touched & {held.buffer for held in (*other.written, *other.read)}),
            default=-1,
        )
        body.insert(place, step)
    return body


def can_overlap(steps: Sequence[Step], allocations: Sequence[Allocation], segments: Sequence[tuple[int, int]]) -> bool:
    """Whether runs of a body may be in different segments of it at a time.

    What they share and change has to be touched in one segment only; ATen sees one arena.
    """
    touched: dict[int, set[int]] = {}
    changed: set[int] = set()
    for number, (begin, end) in enumerate(segments):
        for step in steps[begin:end]:
            if step.together or (step.is_generic and not is_transfer(step.op)):
                return False
            for held in (*step.written, *step.read):
                touched.setdefault(held.buffer, set()).add(number)
            changed |= {h.buffer for h in step.written if allocations[h.buffer].place in _LASTING}
    return all(len(touched[buffer]) == 1 for buffer in changed)


def _writes_state(step: Step, allocations: Sequence[Allocation]) -> bool:
    return any(allocations[held.buffer].place in _LASTING for held in step.written)
