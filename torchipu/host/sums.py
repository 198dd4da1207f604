"""The sums over replicas of a host plan: where they lie, and the steps that make them and hand them to processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchipu.distributed.order import Replicas
from torchipu.host.memory import Memory
from torchipu.host.reductions import (
    Stretch,
    fold,
    joined,
    num_slots,
    reductions_of,
    stretches,
    with_signals,
    with_waits,
)
from torchipu.host.steps import Parts, Step
from torchipu.host.storage import Allocation, Place, lay_out
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor


class Sums:
    """Sums over the replicas of this process and of others.

    Args:
        graph: Whose ``all_reduce`` ops sum.
        replicas: That run here, and elsewhere.
        memory: Receives the sums.

    Attributes:
        is_shared: Whether other processes add to the sums.
        is_folding: Whether a step of this process adds what each replica has accumulated to a slot of the sum; else
            what the only replica accumulates is the sum.
        slots: For each total its slots, where replicas are folded.
    """

    def __init__(self, graph: Graph, replicas: Replicas, memory: Memory) -> None:
        self.replicas, self.memory = replicas, memory
        self.reduced = reductions_of(graph)
        self.is_shared = replicas.total > replicas.count
        # A mean over replicas is one of shares, which have to be made before anything is added up.
        self.is_folding = replicas.count > 1 or (self.is_shared and any(one.is_mean for one in self.reduced))
        self.slots: dict[Tensor, list[HostTensor]] = {}
        self._folded: set[Tensor] = set()
        self._allocations: list[Allocation] = []
        self._counters: list[HostTensor] = []
        self._held: dict[Tensor, HostTensor] = {}
        self._number: HostTensor | None = None

    def allocate(self, states: Mapping[Tensor, HostTensor]) -> None:
        """Make room: slot behind slot, each in the order of the buckets.

        Args:
            states: Where accumulators lie.
        """
        if self.is_folding:
            self._number = self.memory.storage((1,), DType.LONG, Place.REPLICA)
            for _ in range(num_slots(self.replicas)):
                for one in self.reduced:
                    slot = self.memory.storage(one.held.shape, one.held.dtype, Place.PARTIAL)
                    self._allocations.append(self.memory.of(slot))
                    self.slots.setdefault(one.total, []).append(slot)
            self._held = {one.total: self.slots[one.total][0] for one in self.reduced}
        else:
            self._held = {one.total: states[one.held] for one in self.reduced}
            if self.is_shared:
                # What the only replica accumulates is its sum.
                self._allocations = [self.memory.of(states[one.held]) for one in self.reduced]
                for allocation in self._allocations:
                    allocation.place = Place.PARTIAL
        if self.is_shared:
            num_buckets = 1 + max((one.bucket for one in self.reduced), default=-1)
            self._counters = [self.memory.storage((1,), DType.LONG, Place.SIGNAL) for _ in range(num_buckets)]

    def is_folded(self, total: Tensor) -> bool:
        """Whether the steps of a sum are there already: two weights may have the same gradient."""
        return total in self._folded

    def fold(self, op: Op, total: Tensor, value: HostTensor) -> list[Step]:
        """Return the steps that add what a replica has accumulated to the sum.

        Args:
            op: The ``all_reduce``.
            total: What it sums.
            value: Where a replica has it, row-major.
        """
        assert self._number is not None
        self._folded.add(total)
        slots = self.slots[total]
        one = next(one for one in self.reduced if one.total is total)
        steps = [fold(op, slots, value, self._number, self.replicas, mean=one.is_mean)]
        return steps if self.is_shared else [*steps, *joined(op, slots, self.replicas)]

    def exchanged(self, parts: Parts, runs: int) -> Parts:
        """Let steps say when sums can be sent to other processes, and wait until they are whole.

        Args:
            parts: Of the plan; the order of the folds may change.
            runs: Of the body, before an update.
        """
        sums = {total: held.buffer for total, held in self._held.items()}
        bucket_of = {sums[one.total]: one.bucket for one in self.reduced}
        parts.fold.sort(key=lambda step: bucket_of[step.outputs[0].buffer])
        if not self.is_shared or not self.reduced:
            return parts
        update = with_waits(parts.update, self.reduced, sums, len(self._counters))
        if self.is_folding:
            fold = with_signals(parts.fold, self.reduced, sums, self._counters, self.replicas.count)
            return replace(parts, fold=fold, update=update)
        return replace(parts, body=with_signals(parts.body, self.reduced, sums, self._counters, runs), update=update)

    def lay_out(self) -> tuple[int, int, tuple[Stretch, ...]]:
        """Lay the sums out; return their bytes, those of a slot, and the stretches that processes exchange."""
        self.memory.lay_out(Place.SIGNAL)
        num_bytes = lay_out(self._allocations)
        slot_bytes = num_bytes // num_slots(self.replicas)
        if not self.is_shared:
            return num_bytes, slot_bytes, ()
        sums = {total: held.buffer for total, held in self._held.items()}
        return num_bytes, slot_bytes, stretches(self.reduced, self.memory.allocations, sums, slot_bytes)
