"""From placed ops to a flat list of kernel calls: what each op emits, and where its values lie.

The plan may choose how a value is computed; what it is stays what the Program means. Cycle numbers never come
from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torchipu._kernels.table.control import FORK
from torchipu._kernels.table.kernel import I, Kernel, S
from torchipu._kernels.table.observe import TALLY_WORDS
from torchipu.distributed.order import Replicas
from torchipu.errors import ConstraintError
from torchipu.host.collectives import only_awaited, with_late_waits
from torchipu.host.emit.chain import MAX_OPERANDS, can_join, emit_chain
from torchipu.host.emit.copy import emit_copy
from torchipu.host.fusion import find_fusions
from torchipu.host.observation import Observation
from torchipu.host.recomputation import undone
from torchipu.host.reductions import (
    Reduced,
    Stretch,
    fold,
    joined,
    num_slots,
    reductions_of,
    stretches,
    with_signals,
    with_waits,
)
from torchipu.host.replicas import states_of_replicas, with_totals
from torchipu.host.rounding import Computed, end_steps
from torchipu.host.steps import Parts, Step, find_lifetimes, in_order
from torchipu.host.storage import Allocation, Place, lay_out, place_in_arena
from torchipu.host.transfers import write_back_early
from torchipu.ir.graph import Graph, Op, Tensor, walk_ops
from torchipu.ir.types import DType, Leg, Role
from torchipu.optable.blocks import Blocks
from torchipu.optable.fusion import Fusion
from torchipu.optable.host_tensor import TO_NEAREST, HostTensor, Rounding, contiguous_strides
from torchipu.optable.planner import Joining, Mark
from torchipu.optable.spec import spec_of
from torchipu.optable.transfer import is_transfer

# A chain that stays open holds its operands in memory; after this many other ops it is emitted.
MAX_OPS_PAST_OPEN_CHAIN = 4
# The streams of rounding are numbered from here, those of ops that draw random bits from 0.
ROUNDING_STREAMS = 1 << 31
OVERFLOWS = ("infinity", "nan", "saturate")  # as rounding_body.h numbers them


@dataclass(slots=True)
class HostPlan:
    """The finished plan; ``host.executor`` turns it into an engine.

    Attributes:
        steps: Hoisted steps, resets, the body, what folds replicas, the update.
        num_prologue: Steps run before the first micro-batch of an iteration.
        num_reset: The last of these, run for each replica.
        num_body: Steps run for every micro-batch.
        num_fold: Steps run after the last micro-batch of each replica.
        allocations: By number.
        arena_bytes: Size of the arena.
        state_bytes: Size of the state memory.
        bank_bytes: Size of the memory that each replica has for states of its own.
        prepared_bytes: Size of the memory for what is hoisted out of the loop over micro-batches.
        states: Where each state tensor lies.
        outputs: For each graph output the storage that holds it.
        output_is_direct: Whether that storage is the output's own buffer.
        constants: Contents of constant allocations by number.
        random_slots: Allocation of the random words, or None; a row of four for each of ``random_streams``.
        random_streams: Number of each stream of random bits: of an op that draws, or of a result that is rounded.
        shared_streams: Rows of the streams that are the same on all replicas.
        accumulator_bytes: Size of the accumulators of a replica, where there are several.
        partial_bytes: Size of the memory of their sums, or of the accumulators of the only one.
        buckets: What of these sums processes exchange, if there are several.
        slot_bytes: Size of one slot of the sums.
        ops_by_step: The op of each step.
        awaited: Results of collectives that nothing but waits reads: they may be on their way meanwhile.
    """

    steps: list[Step]
    num_prologue: int
    num_reset: int
    num_body: int
    num_fold: int
    allocations: list[Allocation]
    arena_bytes: int
    state_bytes: int
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
    ops_by_step: list[Op | None] = field(default_factory=list)
    awaited: frozenset[Tensor] = frozenset()


class Planner:
    """Emits the steps of a graph; the ``HostPlanner`` that op records talk to.

    Args:
        graph: Placed graph.
        input_strides: Strides of graph inputs that are not row-major, in elements.
        states: Inputs that live in the state memory and outlast a call.
        micro_batches: Micro-batches of an iteration; with more than one, steps that depend on state alone are
            hoisted out of the loop.
        replicas: Replicas that run every micro-batch, and how many other processes run: sums over all of them are
            made where the graph has an ``all_reduce``. A state that the body writes, other than an accumulator, lies
            in the replica's bank.
        frozen: Inputs that seldom change: steps that depend on them and on states alone come first too, so that a
            caller may leave them out where nothing has changed.
        observation: What of results is looked at as they are made; then every op is computed by itself.
        streams: Numbers of the streams of ops that draw random bits, where the graph is a part of a larger one.
    """

    def __init__(
        self, graph: Graph, *, input_strides: Mapping[Tensor, tuple[int, ...]] | None = None,
        states: Sequence[Tensor] = (), micro_batches: int = 1, replicas: Replicas | None = None,
        frozen: Sequence[Tensor] = (), observation: Observation | None = None,
        streams: Mapping[Op, int] | None = None,
    ) -> None:
        self.replicas = replicas or Replicas()
        # The host has room for what the device computes twice. What several replicas make in their only micro-batch
        # is added up from where they made it.
        totals: tuple[Tensor, ...] = ()
        graph = with_late_waits(undone(graph))
        if micro_batches > 1 or self.replicas.count == 1:
            graph, totals = with_totals(graph)
        self.graph, states = graph, (*states, *totals)
        self.runs = micro_batches * self.replicas.count
        self.banked = states_of_replicas(graph) if self.replicas.count > 1 else frozenset()
        self.is_shared = self.replicas.total > self.replicas.count  # among processes
        self.reduced = reductions_of(graph)
        # A mean over replicas is one of shares, which have to be made before anything is added up.
        self.is_folding = self.replicas.count > 1 or (self.is_shared and any(one.is_mean for one in self.reduced))
        self.may_view_outputs = self.runs == 1 and not states
        self.frozen = {index for index, tensor in enumerate(graph.inputs) if tensor in set(frozen)}
        self.is_hoisting = self.runs > 1 or bool(self.frozen)
        self.steps: list[Step] = []
        self.allocations: list[Allocation] = []
        self.values: dict[Tensor, HostTensor] = {}
        self.states: dict[Tensor, HostTensor] = {}
        self.constants: dict[int, tuple[tuple[float, ...] | tuple[int, ...], DType]] = {}
        self.converted: dict[tuple[HostTensor, DType], HostTensor] = {}
        self.casts_due: list[tuple[Tensor, HostTensor]] = []
        self.current: Op | None = None
        self.chain_members: frozenset[Op] = frozenset()
        self.random_ops: dict[Op, int] = dict(streams or {})
        self.random_streams: dict[int, int] = {}  # row by number
        self.shared_streams: list[int] = []
        self.random_slots: int | None = None
        self.makers = {result: op for op in walk_ops(graph.ops) for result in op.outputs}
        self.readers: dict[Tensor, list[Op]] = {}
        self.kept = {value for _, value in graph.updates}
        self.fused: dict[Op, tuple[tuple[Op, ...], Fusion]] = {}
        for part in _with_bodies(graph):
            for op in part.ops:
                for operand in operands_read(op):
                    self.readers.setdefault(operand, []).append(op)
            self.kept |= set(part.outputs)
        self.observation = observation if observation is not None and observation.is_on else None
        for part in _with_bodies(graph) if self.observation is None else ():
            self.fused.update(find_fusions(part, self.readers, self.kept))
        self.counters: list[HostTensor] = []
        self.loops: list[tuple[Step, Step]] = []
        self.depth = 0
        self.absorbed = {op for ops, _ in self.fused.values() for op in ops[:-1]}
        self._bind_inputs(dict(input_strides or {}), states)
        self._allocate_sums()

    # ------------------------------------------------------------------ what records may ask (HostPlanner)
    def value(self, tensor: Tensor, dtype: DType | None = None, *, contiguous: bool = True) -> HostTensor:
        """Return where a value lies, cast or copied to row-major order where asked for.

        A cast alone keeps the order in which the elements lie.
        """
        held = self.values[tensor]
        wanted = dtype or held.dtype
        if held.dtype is wanted and (held.is_contiguous or not contiguous):
            return held
        return self._converted(held, wanted) if contiguous else self._converted_as_it_lies(held, wanted)

    def _converted(self, held: HostTensor, dtype: DType) -> HostTensor:
        key = (held, dtype)
        if key not in self.converted:
            fresh = self.scratch(held.shape, dtype)
            emit_copy(self, fresh, held)
            self.converted[key] = fresh
        return self.converted[key]

    def _converted_as_it_lies(self, held: HostTensor, dtype: DType) -> HostTensor:
        """Return storage of another type in which elements lie in the same order: a transposed view stays one.

        All views of the same elements share it, so that a weight is converted once for forward and backward.
        """
        order = sorted(range(len(held.shape)), key=lambda dim: (-abs(held.strides[dim]), dim))
        lying = HostTensor(
            held.buffer, held.offset, tuple(held.shape[dim] for dim in order),
            tuple(held.strides[dim] for dim in order), held.dtype,
        )
        fresh = self._converted(lying, dtype)
        strides = [0] * len(order)
        for place, dim in enumerate(order):
            strides[dim] = fresh.strides[place]
        return HostTensor(fresh.buffer, fresh.offset, held.shape, tuple(strides), dtype)

    def output(self, tensor: Tensor, dtype: DType | None = None) -> HostTensor:
        """Return row-major storage for a result."""
        stored = self.scratch(tensor.shape, tensor.dtype)
        self.values[tensor] = stored
        if dtype is None or dtype is tensor.dtype:
            return stored
        computed = self.scratch(tensor.shape, dtype)
        self.casts_due.append((tensor, computed))
        return computed

    def alias(self, tensor: Tensor, view: HostTensor) -> None:
        """Say that a result is a view of storage that exists."""
        self.values[tensor] = view

    def update_in_place(self, state: Tensor, result: Tensor) -> HostTensor:
        """Return the storage of a state, which from now on holds ``result``."""
        held = self.values[state]
        self.values[result] = held
        return held

    def scratch(self, shape: Sequence[int], dtype: DType = DType.FLOAT) -> HostTensor:
        """Return fresh row-major storage in the arena."""
        count = 1
        for size in shape:
            count *= size
        allocation = self._allocate(max(1, count) * dtype.host_bytes, Place.ARENA)
        return HostTensor(allocation.number, 0, tuple(shape), contiguous_strides(shape), dtype)

    def constant(self, values: Sequence[int] | Sequence[float], dtype: DType) -> HostTensor:
        """Return 1-d storage that holds constants."""
        allocation = self._allocate(max(1, len(values)) * dtype.host_bytes, Place.CONSTANT)
        self.constants[allocation.number] = (tuple(values), dtype)
        return HostTensor(allocation.number, 0, (len(values),), (1,), dtype)

    def random_state(self, op: Op) -> HostTensor:
        """Return LONG[4]: seed, replica, number of the op, micro-batch counter."""
        return self._random_row(self.random_ops.setdefault(op, len(self.random_ops)), op)

    def rounding(self, op: Op, result: Tensor) -> Rounding:
        """Return how a half result of an op is rounded, as the precision pass has said in its attributes."""
        if result.dtype is not DType.HALF:
            return TO_NEAREST
        overflow = OVERFLOWS.index(str(op.attrs.get("half_overflow", OVERFLOWS[0])))
        first = op.attrs.get("rounding_stream")
        if not isinstance(first, int):
            return Rounding(None, overflow) if overflow else TO_NEAREST
        return Rounding(self._random_row(ROUNDING_STREAMS + first + op.outputs.index(result), op), overflow)

    def _random_row(self, stream: int, op: Op) -> HostTensor:
        if self.random_slots is None:
            most = sum(
                (len(op.outputs) if "rounding_stream" in op.attrs else 0) + _is_random(op)
                for op in walk_ops(self.graph.ops)
            )
            self.random_slots = self._allocate(max(1, most) * 32, Place.RANDOM).number
        if stream not in self.random_streams:
            self.random_streams[stream] = len(self.random_streams)
            if op.leg is Leg.UPDATE:
                self.shared_streams.append(self.random_streams[stream])
        state = HostTensor(self.random_slots, 4 * self.random_streams[stream], (4,), (1,), DType.LONG)
        for counter in self.counters:
            outer, state = state, self.scratch((4,), DType.LONG)
            self.step(FORK, [state], [outer, counter])
        return state

    def wanted(self, tensor: Tensor) -> bool:
        """Whether anything reads this result."""
        return tensor in self.kept or bool(self.readers.get(tensor))

    def wanted_outside(self, tensor: Tensor) -> bool:
        """Whether anything outside the chain being emitted reads this result."""
        return tensor in self.kept or any(op not in self.chain_members for op in self.readers.get(tensor, ()))

    def step(
        self, kernel: Kernel[I, S], outputs: Sequence[HostTensor], inputs: Sequence[HostTensor], *,
        ints: I | tuple[()] = (), scalars: S | tuple[()] = (), items: int = 1, grain: int = 1,
        scratch_bytes: int = 0, reads_outputs: bool = False, together: bool = False, adds_up: bool = False,
        joining: Joining | None = None, writes: Sequence[Blocks | None] = (),
    ) -> None:
        """Append a kernel call."""
        if items <= 0:
            return
        kernel.check(len(outputs) + len(inputs), ints, scalars)
        if together and self.depth:
            assert self.current is not None
            raise ConstraintError(
                f"{self.current.target} is in a branch or a loop, which replicas may leave at different times",
                source=self.current.source, remedy="move the normalisation out of it, or set batch_norm_group_size=1",
            )
        self._append(Step(
            self.current, kernel, tuple(outputs), tuple(inputs), ints, scalars, items, max(1, grain),
            scratch_bytes, reads_outputs, is_hoistable=not together, together=together, adds_up=adds_up,
            joining=joining, writes=tuple(writes),
        ))

    # ------------------------------------------------------------------ sums over replicas
    def _allocate_sums(self) -> None:
        """Make room for the sums over replicas: slot behind slot, each in the order of the buckets."""
        self.slots: dict[Tensor, list[HostTensor]] = {}
        self.folded: set[Tensor] = set()
        self.sums: list[Allocation] = []
        self.counters_of_buckets: list[HostTensor] = []
        if self.is_folding:
            self.replica_number = HostTensor(self._allocate(8, Place.REPLICA).number, 0, (1,), (1,), DType.LONG)
            for _ in range(num_slots(self.replicas)):
                for one in self.reduced:
                    held = one.held
                    self.sums.append(self._allocate(held.num_elements * held.dtype.host_bytes, Place.PARTIAL))
                    self.slots.setdefault(one.total, []).append(HostTensor(
                        self.sums[-1].number, 0, held.shape, contiguous_strides(held.shape), held.dtype,
                    ))
        elif self.is_shared:
            # What the only replica accumulates is its sum.
            self.sums = [self.allocations[self.states[one.held].buffer] for one in self.reduced]
            for allocation in self.sums:
                allocation.place = Place.PARTIAL
        if self.is_shared:
            for _ in range(1 + max((one.bucket for one in self.reduced), default=-1)):
                counter = self._allocate(8, Place.SIGNAL)
                self.counters_of_buckets.append(HostTensor(counter.number, 0, (1,), (1,), DType.LONG))

    def all_reduced(self, total: Tensor) -> HostTensor:
        """Emit the sum of what all replicas have accumulated, and return where it lies."""
        op = self.current
        assert op is not None
        if not self.is_folding:
            return self.values[total]
        if total in self.folded:  # two weights may have the same gradient
            return self.slots[total][0]
        self.folded.add(total)
        self.current = self.makers.get(total)  # a copy to row-major order is part of each micro-batch
        value, self.current = self.value(total), op
        slots = self.slots[total]
        one = next(one for one in self.reduced if one.total is total)
        self._append(fold(op, slots, value, self.replica_number, self.replicas, mean=one.is_mean))
        if not self.is_shared:
            for step in joined(op, slots, self.replicas):
                self._append(step)
        return slots[0]

    def _exchanged(self, parts: Parts) -> Parts:
        """Let steps say when sums can be sent to other processes, and wait until they are whole."""
        bucket_of = {self._sum_of(one).buffer: one.bucket for one in self.reduced}
        parts.fold.sort(key=lambda step: bucket_of[step.outputs[0].buffer])
        if not self.is_shared or not self.reduced:
            return parts
        sums = {one.total: self._sum_of(one).buffer for one in self.reduced}
        counters, num_buckets = self.counters_of_buckets, len(self.counters_of_buckets)
        update = with_waits(parts.update, self.reduced, sums, num_buckets)
        if self.is_folding:
            fold = with_signals(parts.fold, self.reduced, sums, counters, self.replicas.count)
            return replace(parts, fold=fold, update=update)
        return replace(
            parts, body=with_signals(parts.body, self.reduced, sums, counters, self.runs), update=update,
        )

    def _sum_of(self, one: Reduced) -> HostTensor:
        """Return where the sum over the replicas of this process lies."""
        return self.slots[one.total][0] if self.is_folding else self.states[one.held]

    # ------------------------------------------------------------------ control flow
    def body(self, body: Graph, operands: Sequence[HostTensor]) -> list[HostTensor]:
        """Append the steps of a graph that an op runs."""
        self.values.update(zip(body.inputs, operands, strict=True))
        # A copy made by the steps of a body is there only where these have run.
        current, converted = self.current, self.converted
        self.converted = dict(converted)
        self.depth += 1
        self._emit_ops(body.ops)
        self.depth -= 1
        self.current, self.converted = current, converted
        return [self.values[tensor] for tensor in body.outputs]

    def place(self, mark: Mark) -> None:
        """Put a mark before the next step."""
        self._append(Step(self.current, None, (), (), is_hoistable=False, mark=mark))

    def go(self, mark: Mark, unless: HostTensor | None = None) -> None:
        """Append a jump."""
        read = () if unless is None else (unless,)
        self._append(Step(self.current, None, (), read, is_hoistable=False, goes_to=mark))

    @contextmanager
    def loop(self, counter: HostTensor) -> Iterator[None]:
        """Take note of the first and the last step of a loop."""
        first, last = (Step(self.current, None, (), (), is_hoistable=False, mark=Mark()) for _ in range(2))
        self._append(first)
        self.counters.append(counter)
        self.depth += 1
        yield
        self.depth -= 1
        self.counters.pop()
        self._append(last)
        self.loops.append((first, last))

    # ------------------------------------------------------------------ planning
    def number_streams(self) -> Mapping[Op, int]:
        """Return the numbers of the streams of all ops that draw random bits; in place of a plan."""
        self._emit_ops(self.graph.ops)
        return self.random_ops

    def plan(self) -> HostPlan:
        """Emit every op, decide what is hoisted, and place all storage."""
        self._emit_ops(self.graph.ops)
        outputs, direct = self._collect_outputs()
        self._write_back_states()
        if any(is_transfer(step.op) for step in self.steps):
            self.steps = write_back_early(self.steps, self.allocations)
        parts = self._exchanged(in_order(
            self.steps, self.allocations, is_hoisting=self.is_hoisting, frozen=self.frozen,
            random_slots=self.random_slots,
        ))
        self.steps = parts.joined()
        num_reset, num_body, num_fold = len(parts.reset), len(parts.body), len(parts.fold)
        num_prologue = len(parts.hoisted) + num_reset
        find_lifetimes(
            self.steps, self.allocations, outputs, num_prologue=num_prologue,
            is_apart=self.runs > 1, loops=self.loops,
            kept_until=num_prologue + num_body - 1 if self.is_hoisting else None,
        )
        arena = place_in_arena([a for a in self.allocations if a.place is Place.ARENA and a.first >= 0])
        accumulators, sums = self._place_all(Place.ACCUMULATOR), lay_out(self.sums)
        self._place_all(Place.SIGNAL)
        slot_bytes = sums // num_slots(self.replicas)
        buckets = stretches(
            self.reduced, self.allocations, {one.total: self._sum_of(one).buffer for one in self.reduced}, slot_bytes,
        ) if self.is_shared else ()
        return HostPlan(
            self.steps, num_prologue, num_reset, num_body, num_fold, self.allocations, arena,
            self._place_all(Place.STATE), self._place_all(Place.BANK), self._place_all(Place.PREPARED), self.states,
            outputs, direct, self.constants,
            self.random_slots, tuple(self.random_streams), tuple(self.shared_streams), accumulators, sums, buckets,
            slot_bytes, [step.op for step in self.steps],
            # What looks at every result needs each of them as soon as it is made.
            only_awaited(self.readers, self.kept) if self.observation is None else frozenset(),
        )

    def _bind_inputs(self, strides: dict[Tensor, tuple[int, ...]], states: Sequence[Tensor]) -> None:
        in_state = set(states)
        for index, tensor in enumerate(self.graph.inputs):
            num_bytes = max(1, tensor.num_elements) * tensor.dtype.host_bytes
            place = Place.STATE if tensor in in_state else Place.INPUT
            place = Place.BANK if tensor in self.banked else place
            if place is Place.STATE and tensor.role is Role.ACCUMULATOR and self.is_folding:
                place = Place.ACCUMULATOR
            allocation = self._allocate(num_bytes, place, index)
            held = HostTensor(
                allocation.number, 0, tensor.shape, strides.get(tensor, contiguous_strides(tensor.shape)), tensor.dtype,
            )
            self.values[tensor] = held
            if tensor in in_state:
                self.states[tensor] = held

    def _emit_ops(self, ops: Sequence[Op]) -> None:
        if self.observation is not None:
            self._emit_observed(ops, self.observation)
            return
        open_chain: list[Op] = []
        written: set[Tensor] = set()
        passed = 0
        for op in ops:
            joins = self._joins(op)
            if open_chain and not any(operand in written for operand in op.inputs) and not joins:
                self._emit_single(op)
                passed += 0 if _is_view(op) else 1
                if passed > MAX_OPS_PAST_OPEN_CHAIN:
                    self._emit_chain(open_chain)
                    open_chain, written, passed = [], set(), 0
                continue
            if joins:
                if open_chain and not self._fits(open_chain, op):
                    self._emit_chain(open_chain)
                    open_chain, written, passed = [], set(), 0
                open_chain.append(op)
                written.update(op.outputs)
                continue
            if open_chain:
                self._emit_chain(open_chain)
                open_chain, written, passed = [], set(), 0
            self._emit_single(op)
        if open_chain:
            self._emit_chain(open_chain)

    def _emit_observed(self, ops: Sequence[Op], observation: Observation) -> None:
        """Emit ops one by one, each with the steps that look at its results."""
        for op in ops:
            if can_join(op):
                self._emit_chain([op])
            else:
                self._emit_single(op)
            self.current = op
            results = [(tensor, self.value(tensor)) for tensor in observation.of(op) if tensor in self.values]
            if observation.traps and not op.bodies:
                observation.emit_traps(op, [held for _, held in results], self)
            for tensor, held in results if observation.counts else ():
                observation.emit_count(op, tensor, held, self._rows_of(observation), self)

    def _rows_of(self, observation: Observation) -> HostTensor:
        if observation.rows is None:
            most = sum(len(op.outputs) for op in walk_ops(self.graph.ops))
            observation.rows = self._allocate(TALLY_WORDS * 8 * most, Place.STATE).number
        return HostTensor(observation.rows, 0, (TALLY_WORDS,), (1,), DType.LONG)

    def _joins(self, op: Op) -> bool:
        """Whether an op is elementwise and no fusion has it."""
        return can_join(op) and op not in self.fused and op not in self.absorbed

    def _fits(self, chain: list[Op], op: Op) -> bool:
        """Whether an op may join a chain: same shape and leg, and room for its operands."""
        if op.outputs[0].shape != chain[0].outputs[0].shape or (op.leg is Leg.UPDATE) != (chain[0].leg is Leg.UPDATE):
            return False
        members = [*chain, op]
        made = {result for member in members for result in member.outputs}
        read = {operand for member in members for operand in member.inputs if operand not in made}
        return len(read) + len(made) <= MAX_OPERANDS

    def _emit_chain(self, chain: list[Op]) -> None:
        self.current = chain[0]
        self.chain_members = frozenset(chain)
        emit_chain(chain, self)
        self.chain_members = frozenset()
        self._emit_casts(len(self.steps))

    def _emit_single(self, op: Op) -> None:
        self.current, begin = op, len(self.steps)
        if op in self.absorbed:
            return
        spec = spec_of(op)
        if op in self.fused:
            ops, fusion = self.fused[op]
            fusion.emit(ops, self)
        elif is_transfer(op):
            self._emit_transfer(op)
        elif spec is None or spec.emit is None:
            self._emit_generic(op)
        else:
            spec.emit(op, self)
        self._emit_casts(begin)

    def _emit_casts(self, begin: int) -> None:
        """Convert what was computed in another type: in the steps of the op, from ``begin`` on, or in one more."""
        steps = self.steps[begin:]
        for tensor, computed in self.casts_due:
            held, end = self.values[tensor], len(self.steps)
            rounding = self.rounding(self.makers[tensor], tensor)
            # Within a loop the random words of a trip come from steps of their own: these go before the op's.
            self.steps[begin:] = [*self.steps[end:], *self.steps[begin:end]]
            if held.dtype is DType.HALF and end_steps(steps, Computed(computed, held, rounding)):
                continue
            emit_copy(self, held, computed, rounding)
        self.casts_due = []

    def _emit_generic(self, op: Op) -> None:
        """Run ATen on the host: operands and results lie in the arena, where Python sees them as tensors."""
        inputs = tuple(self._in_arena(operand) for operand in op.inputs)
        outputs = tuple(self.output(result) for result in op.outputs)
        self._append(Step(op, None, outputs, inputs, is_hoistable=False))

    def _emit_transfer(self, op: Op) -> None:
        """Let another process have a value, or have one of its: as it lies in row-major order, in any memory."""
        inputs = tuple(self.value(operand) for operand in op.inputs)
        outputs = tuple(self.output(result) for result in op.outputs)
        self._append(Step(op, None, outputs, inputs, is_hoistable=False))

    def _in_arena(self, tensor: Tensor) -> HostTensor:
        held = self.values[tensor]
        if held.is_contiguous and self.allocations[held.buffer].place is Place.ARENA:
            return held
        fresh = self.scratch(held.shape, held.dtype)
        emit_copy(self, fresh, held)
        return fresh

    def _write_back_states(self) -> None:
        """Copy new values of states that were not updated in place; last, since older steps read the old value.

        An output that shows a state as it was is one of these older steps.
        """
        self.current = None
        pending = [(s, v) for s, v in self.graph.updates if self.values[v].buffer != self.states[s].buffer]
        sources = [self.values[v] for _, v in pending]
        # A new value may be a view of another state that is about to be overwritten.
        state_buffers = {held.buffer for held in self.states.values()}
        for position, source in enumerate(sources):
            if source.buffer in state_buffers:
                fresh = self.scratch(source.shape, source.dtype)
                emit_copy(self, fresh, source)
                sources[position] = fresh
        makers = {result: op for op in self.graph.ops if op.leg is Leg.UPDATE for result in op.outputs}
        for (state, value), source in zip(pending, sources, strict=True):
            self.current = makers.get(value)
            emit_copy(self, self.states[state], source)

    def _collect_outputs(self) -> tuple[list[HostTensor], list[bool]]:
        """Let an op write straight into an output's buffer where it can; copy otherwise."""
        self.current = None
        outputs, direct = [], []
        # ATen sees the arena only: what a generic step reads or writes stays there.
        pinned = {
            held.buffer for step in self.steps if step.is_generic and not is_transfer(step.op)
            for held in (*step.inputs, *step.outputs)
        }
        for index, tensor in enumerate(self.graph.outputs):
            held = self.values[tensor]
            allocation = self.allocations[held.buffer]
            whole = held.is_contiguous and held.offset == 0 and (
                allocation.num_bytes == max(1, held.num_elements) * held.dtype.host_bytes
            )
            if allocation.place is Place.ARENA and whole and held.buffer not in pinned:
                allocation.place, allocation.index = Place.OUTPUT, index
                direct.append(True)
            elif self.may_view_outputs and allocation.place in (Place.INPUT, Place.OUTPUT):
                direct.append(False)
            else:
                fresh = self._allocate(max(1, held.num_elements) * held.dtype.host_bytes, Place.OUTPUT, index)
                target = HostTensor(fresh.number, 0, held.shape, contiguous_strides(held.shape), held.dtype)
                emit_copy(self, target, held)
                held = target
                direct.append(True)
            outputs.append(held)
        return outputs, direct

    def _place_all(self, place: Place) -> int:
        """Lay allocations of one place out one after another; return their bytes."""
        return lay_out([allocation for allocation in self.allocations if allocation.place is place])

    def _allocate(self, num_bytes: int, place: Place, index: int = 0) -> Allocation:
        allocation = Allocation(len(self.allocations), num_bytes, place, index)
        self.allocations.append(allocation)
        return allocation

    def _append(self, step: Step) -> None:
        if self.depth:  # what a body computes belongs to where the op runs that owns the body
            step.is_hoistable = False
        self.steps.append(step)


def _with_bodies(graph: Graph) -> Iterator[Graph]:
    """Yield a graph and those that its ops run."""
    yield graph
    for op in graph.ops:
        for body in op.bodies:
            yield from _with_bodies(body)


def operands_read(op: Op) -> tuple[Tensor, ...]:
    """Return the operands whose values matter, not their shapes alone."""
    spec = spec_of(op)
    if spec is None or not spec.shape_only:
        return op.inputs
    ignored = {op.operand(name) for name in spec.shape_only}
    return tuple(operand for operand in op.inputs if operand not in ignored)


def _is_view(op: Op) -> bool:
    spec = spec_of(op)
    return spec is not None and spec.is_view


def _is_random(op: Op) -> bool:
    spec = spec_of(op)
    return spec is not None and spec.is_random
