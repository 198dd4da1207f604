"""From the steps that a planner has emitted to a finished plan: their order, and where in memory their values lie."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torchipu.host.phases import in_phases, widen_lifetimes
from torchipu.host.plan import HostPlan
from torchipu.host.steps import Step, find_lifetimes, in_order
from torchipu.host.storage import Allocation, Place, lay_out, place_in_arena
from torchipu.host.sums import Sums
from torchipu.host.transfers import write_back_early
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.transfer import is_transfer


@dataclass(slots=True)
class Emitted:
    """The steps of a graph as they were emitted; see ``HostPlan`` for what is not said here.

    Attributes:
        steps: In the order of the ops; changed by whoever arranges them, as are the allocations.
        allocations: By number.
        loops: First and last step of each loop, inner ones first.
        sums: Over replicas.
        runs: Micro-batches and replicas of an update.
        is_hoisting: Whether steps that no micro-batch changes are run before the first one.
        frozen: Numbers of the graph's inputs that seldom change.
    """

    steps: list[Step]
    allocations: list[Allocation]
    loops: list[tuple[Step, Step]]
    sums: Sums
    runs: int
    is_hoisting: bool
    frozen: Collection[int]
    states: dict[Tensor, HostTensor]
    outputs: list[HostTensor]
    output_is_direct: list[bool]
    over_inputs: dict[int, int]
    constants: dict[int, tuple[tuple[float, ...] | tuple[int, ...], DType]]
    random_slots: int | None
    random_streams: tuple[int, ...]
    shared_streams: tuple[int, ...]
    awaited: frozenset[Tensor]


def arranged(emitted: Emitted) -> HostPlan:
    """Decide what is hoisted and what threads share out, and place all storage."""
    allocations, sums = emitted.allocations, emitted.sums
    # Programs in several processes run stretches of the body in an order of their own.
    is_parted = any(is_transfer(step.op) for step in emitted.steps)
    parts = sums.exchanged(in_order(
        write_back_early(emitted.steps, allocations) if is_parted else emitted.steps, allocations,
        is_hoisting=emitted.is_hoisting, frozen=emitted.frozen, random_slots=emitted.random_slots,
    ), emitted.runs)
    ordered, segments = (list(parts.each()), []) if is_parted else in_phases(
        parts.each(), allocations, (*emitted.outputs, *emitted.states.values()),
    )
    steps = [step for part in ordered for step in part]
    num_body, num_prologue = len(parts.body), len(parts.hoisted) + len(parts.reset)
    find_lifetimes(
        steps, allocations, emitted.outputs, num_prologue=num_prologue, is_apart=emitted.runs > 1, loops=emitted.loops,
        kept_until=num_prologue + num_body - 1 if emitted.is_hoisting else None,
    )
    widen_lifetimes(allocations, segments)
    sum_bytes, slot_bytes, buckets = sums.lay_out()
    at: dict[Place, list[Allocation]] = {}
    for allocation in allocations:
        at.setdefault(allocation.place, []).append(allocation)
    return HostPlan(
        steps=steps, num_prologue=num_prologue, num_reset=len(parts.reset), num_body=num_body,
        num_fold=len(parts.fold), allocations=allocations,
        arena_bytes=place_in_arena([allocation for allocation in at.get(Place.ARENA, ()) if allocation.first >= 0]),
        bank_bytes=lay_out(at.get(Place.BANK, ())), prepared_bytes=lay_out(at.get(Place.PREPARED, ())),
        states=emitted.states, outputs=emitted.outputs, output_is_direct=emitted.output_is_direct,
        constants=emitted.constants, random_slots=emitted.random_slots, random_streams=emitted.random_streams,
        shared_streams=emitted.shared_streams, accumulator_bytes=lay_out(at.get(Place.ACCUMULATOR, ())),
        partial_bytes=sum_bytes, buckets=buckets, slot_bytes=slot_bytes, segments=tuple(segments),
        ops_by_step=[step.op for step in steps], over_inputs=emitted.over_inputs, awaited=emitted.awaited,
    )
