"""Where the sums over replicas lie on the host, and in which buckets processes exchange them.

What a replica accumulates is added to a stack of sums in the order of `torchipu.distributed.order`. The bottom of the
stack, slot 0, holds the whole sum in the end. Slots lie one behind the other, and so do the tensors in each slot, in
the order in which the backward leg finishes them: a bucket, neighbouring tensors of one type, is one stretch of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchipu._kernels.table.scaling import (
    ADD,
    FOLD_REPLICA,
    SIGNAL,
    AddInts,
    FoldReplicaInts,
    FoldReplicaScalars,
    SignalInts,
    Summed,
)
from torchipu._kernels.table.update import SPAN
from torchipu.distributed.order import Replicas, additions, pushes, slots_of
from torchipu.host.replicas import ACCUMULATING
from torchipu.host.steps import Step
from torchipu.host.storage import Allocation
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor

BUCKET_BYTES = 4 << 20
"""What processes exchange at a time: from 2 to 16 MiB made no difference between two processes on one machine."""
SUMMED = {DType.FLOAT: Summed.FLOATS, DType.HALF: Summed.HALVES, DType.LONG: Summed.WORDS}


@dataclass(frozen=True, slots=True)
class Reduced:
    """A sum over replicas.

    Attributes:
        total: What each of them adds, at the end of its micro-batches.
        held: The accumulator that it is kept in, or what is made by the only micro-batch.
        is_mean: Whether that is the mean over the micro-batches so far: then the mean over the replicas is taken.
        bucket: In which bucket it is exchanged.
    """

    total: Tensor
    held: Tensor
    is_mean: bool
    bucket: int


def reductions_of(graph: Graph) -> list[Reduced]:
    """Return what a graph adds up over replicas, in the order in which the backward leg finishes it, type by type."""
    due = {op.inputs[0]: None for op in graph.ops if op.kind == "all_reduce"}
    made = {tensor: op for op in graph.ops for tensor in op.outputs if tensor in due}
    totals = [*(tensor for tensor in due if tensor not in made), *made]
    types = list(dict.fromkeys(tensor.dtype for tensor in totals))
    totals.sort(key=lambda tensor: types.index(tensor.dtype))
    found: list[Reduced] = []
    filled, bucket = 0, 0
    for total in totals:
        op = made.get(total)
        held = op.inputs[0] if op is not None and op.kind in ACCUMULATING else total
        if found and (filled >= BUCKET_BYTES or held.dtype is not found[-1].held.dtype):
            filled, bucket = 0, bucket + 1
        filled += held.num_elements * held.dtype.host_bytes
        found.append(Reduced(total, held, op is not None and op.kind == "accumulate_mean", bucket))
    return found


def fold(
    op: Op, slots: Sequence[HostTensor], held: HostTensor, number: HostTensor, replicas: Replicas, *, mean: bool,
) -> Step:
    """Return the step that puts what a replica has accumulated onto the stack.

    Args:
        op: The sum over replicas.
        slots: The stack.
        held: What the replica has.
        number: Which of the replicas of this process it is.
        replicas: All of them.
        mean: Whether their mean is taken.
    """
    stack = tuple(number for push in pushes(replicas.leaves)[0] for number in (push.depth, push.joins))
    ints = FoldReplicaInts(held.num_elements, SUMMED[held.dtype], len(slots), stack)
    factor = 1.0 / replicas.total if mean else 1.0
    return Step(
        op, FOLD_REPLICA, tuple(slots), (held, number), ints, FoldReplicaScalars(factor),
        items=-(-held.num_elements // SPAN),
        reads_outputs=True, is_hoistable=False, is_fold=True, adds_up=True,
    )


def joined(op: Op, slots: Sequence[HostTensor], replicas: Replicas) -> list[Step]:
    """Return the steps that make one sum of what lies on the stack of the only process."""
    nodes = pushes(replicas.leaves)[1]
    return [
        Step(
            op, ADD, (slots[to],), (slots[to], slots[term]), AddInts(slots[to].num_elements, SUMMED[slots[to].dtype]),
            items=-(-slots[to].num_elements // SPAN), reads_outputs=True, is_hoistable=False,
        )
        for to, term in additions(nodes)
    ]


def num_slots(replicas: Replicas) -> int:
    """Return how many sums a process has at hand at most."""
    return slots_of(replicas.leaves)


def with_signals(
    steps: list[Step], reduced: Sequence[Reduced], buffers: Mapping[Tensor, int], counters: Sequence[HostTensor],
    runs: int,
) -> list[Step]:
    """Let steps say when a bucket is complete, right behind the last step that writes into it.

    Buckets are complete in their order.

    Args:
        steps: Those of the body, or those that fold replicas, in their order.
        reduced: What is in the buckets.
        buffers: The allocation that they write for each.
        counters: A word for each bucket.
        runs: How often these steps run.
    """
    bucket_of = {buffers[one.total]: one.bucket for one in reduced}
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        for written in step.written:
            if written.buffer in bucket_of:
                last[bucket_of[written.buffer]] = number
    behind: dict[int, list[Step]] = {}
    position = 0
    for bucket, counter in enumerate(counters):
        position = max(position, last[bucket])
        before = steps[position]
        behind.setdefault(position, []).append(Step(
            before.op, SIGNAL, (counter,), (), SignalInts(runs), reads_outputs=True, is_hoistable=False, signals=True,
            is_fold=before.is_fold,
        ))
    return [one for number, step in enumerate(steps) for one in (step, *behind.get(number, ()))]


def with_waits(
    update: Iterable[Step], reduced: Sequence[Reduced], buffers: Mapping[Tensor, int], num_buckets: int,
) -> list[Step]:
    """Let the update wait for each bucket before the first step that reads what is in it.

    Args:
        update: Steps of the update, in order.
        reduced: What is in the buckets.
        buffers: The allocation that holds each sum.
        num_buckets: How many there are; those that nothing reads are waited for at the end.
    """
    bucket_of = {buffers[one.total]: one.bucket for one in reduced}
    awaited: set[int] = set()
    done: list[Step] = []
    for step in update:
        touched = {bucket_of[t.buffer] for t in (*step.written, *step.read) if t.buffer in bucket_of}
        for bucket in sorted(touched - awaited):
            done.append(_wait(bucket, step.op))
        awaited |= touched
        done.append(step)
    return [*done, *(_wait(bucket, None) for bucket in range(num_buckets) if bucket not in awaited)]


def _wait(bucket: int, op: Op | None) -> Step:
    return Step(op, None, (), (), is_hoistable=False, is_update=True, waits_for=bucket)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A bucket in the memory of the sums.

    Attributes:
        begin_bytes: Where it begins within a slot.
        num_bytes: How long it is.
        dtype: Type of its elements.
    """

    begin_bytes: int
    num_bytes: int
    dtype: DType


def stretches(
    reduced: Sequence[Reduced], allocations: Sequence[Allocation], buffers: Mapping[Tensor, int], end_bytes: int,
) -> tuple[Stretch, ...]:
    """Return where the buckets lie.

    Args:
        reduced: What is in them.
        allocations: By number, placed.
        buffers: The allocation in slot 0 of each.
        end_bytes: Bytes of a slot.
    """
    begins: dict[int, int] = {}
    dtypes: dict[int, DType] = {}
    for one in reduced:
        begin = allocations[buffers[one.total]].offset_bytes
        begins[one.bucket] = min(begin, begins.get(one.bucket, begin))
        dtypes[one.bucket] = one.held.dtype
    ends = [*[begins[bucket] for bucket in range(1, len(begins))], end_bytes]
    return tuple(
        Stretch(begins[bucket], end - begins[bucket], dtypes[bucket]) for bucket, end in enumerate(ends)
    ) if begins else ()
