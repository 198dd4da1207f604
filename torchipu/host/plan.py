"""A finished host plan: what runs when, and the memory that it runs in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchipu.host.phases import Segment
from torchipu.host.reductions import Stretch
from torchipu.host.steps import Step
from torchipu.host.storage import Allocation
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor


@dataclass(slots=True)
class HostPlan:
    """The finished plan; ``host.bound_plan`` turns it into an engine.

    Attributes:
        steps: Hoisted steps, resets, the body, what folds replicas, the update.
        num_prologue: Steps run before the first micro-batch of an iteration.
        num_reset: The last of these, run for each replica.
        num_body: Steps run for every micro-batch.
        num_fold: Steps run after the last micro-batch of each replica.
        allocations: By number.
        arena_bytes: Size of the arena.
        bank_bytes: Size of the memory that each replica has for states of its own.
        prepared_bytes: Size of the memory for what is hoisted out of the loop over micro-batches.
        states: Where each state tensor lies.
        outputs: For each graph output the storage that holds it.
        output_is_direct: Whether that storage is the output's own buffer.
        over_inputs: By number of an output that is stored over an input the number of that.
        constants: Contents of constant allocations by number.
        random_slots: Allocation of the random words, or None; a row of four for each of ``random_streams``.
        random_streams: Number of each stream of random bits: of an op that draws, or of a result that is rounded.
        shared_streams: Rows of the streams that are the same on all replicas.
        accumulator_bytes: Size of the accumulators of a replica, where there are several.
        partial_bytes: Size of the memory of their sums, or of the accumulators of the only one.
        buckets: What of these sums processes exchange, if there are several.
        slot_bytes: Size of one slot of the sums.
        ops_by_step: The op of each step.
        segments: What of the steps threads share out between two meetings; see ``phases``.
        awaited: Results of collectives that nothing but waits reads: they may be on their way meanwhile.
    """

    steps: list[Step]
    num_prologue: int
    num_reset: int
    num_body: int
    num_fold: int
    allocations: list[Allocation]
    arena_bytes: int
    bank_bytes: int
    prepared_bytes: int
    states: dict[Tensor, HostTensor]
    outputs: list[HostTensor]
    output_is_direct: list[bool]
    constants: dict[int, tuple[tuple[float, ...] | tuple[int, ...], DType]]
    random_slots: int | None
    random_streams: tuple[int, ...]
    shared_streams: tuple[int, ...]
    accumulator_bytes: int = 0
    partial_bytes: int = 0
    buckets: tuple[Stretch, ...] = ()
    slot_bytes: int = 0
    ops_by_step: Sequence[Op | None] = field(default_factory=list)
    segments: tuple[Segment, ...] = ()
    awaited: frozenset[Tensor] = frozenset()
    over_inputs: dict[int, int] = field(default_factory=dict)
