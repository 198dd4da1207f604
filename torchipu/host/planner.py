"""From placed ops to a flat list of kernel calls: what each op emits, and where its values lie.

The plan may choose how a value is computed; what it is stays what the Program means. Cycle numbers never come
from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torchipu._kernels.table.control import FORK
from torchipu._kernels.table.kernel import I, Kernel, S
from torchipu._kernels.table.observe import TALLY_WORDS
from torchipu.distributed.order import Replicas
from torchipu.errors import ConstraintError, VerifyError
from torchipu.host.arrangement import Emitted, arranged
from torchipu.host.collectives import only_awaited, with_late_waits
from torchipu.host.concatenation import Concatenations, varying
from torchipu.host.edge import Edge, Outputs
from torchipu.host.emit.blocked_layout import blocked_shape, strides_with_lanes_third
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.vectors import has_bfloat_products
from torchipu.host.folded_chains import FoldedChains
from torchipu.host.fusion import find_fusions
from torchipu.host.groups import grouped
from torchipu.host.kept_floats import KeptFloats
from torchipu.host.late_look_ups import with_late_look_ups
from torchipu.host.layouts import Crossing, Layouts
from torchipu.host.lines import with_lines
from torchipu.host.look_ups_for_each import with_look_ups_for_each
from torchipu.host.made_once import MadeOnce
from torchipu.host.memory import Memory
from torchipu.host.observation import Observation
from torchipu.host.operands import Operands
from torchipu.host.orders import Orders, with_channels_last
from torchipu.host.plan import HostPlan
from torchipu.host.products_of_views import with_products_of_views
from torchipu.host.random_streams import RandomStreams
from torchipu.host.recomputation import undone
from torchipu.host.replicas import states_of_replicas, with_totals
from torchipu.host.rounding import Computed, end_steps
from torchipu.host.steps import Step
from torchipu.host.storage import Place
from torchipu.host.sums import Sums
from torchipu.host.uses import Uses, with_bodies
from torchipu.host.values import Values
from torchipu.host.written_inputs import write_inputs
from torchipu.ir.graph import Graph, Op, Tensor, walk_ops
from torchipu.ir.sizes import largest
from torchipu.ir.types import DType, Leg, Role
from torchipu.optable.alternatives import EitherTensor
from torchipu.optable.blocked import Terms
from torchipu.optable.blocks import Blocks
from torchipu.optable.chain import can_join
from torchipu.optable.collective import WAIT, is_collective
from torchipu.optable.emission import Stored, draws_bits, emit_cast, emit_chain
from torchipu.optable.folded_chain import emit_folded
from torchipu.optable.fusion import Fusion
from torchipu.optable.host_tensor import TO_NEAREST, HostTensor, Rounding
from torchipu.optable.planner import ChainFold, Joining, Mark
from torchipu.optable.samples import Samples
from torchipu.optable.spec import spec_of
from torchipu.optable.transfer import is_transfer


class Planner(Operands):
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
        is_strict: Whether convolutions are the sums that define them, and no transforms are made; and products of
            bfloat16 are products of floats.
        is_alone: Whether no other program computes a part of the same, whose values would have to have the same bits.
        edge: What the caller has and expects.

    Attributes:
        graph: The one whose ops are emitted: what is recomputed on the device is not.
        runs: Micro-batches and replicas of an update.
        banked: States of which each replica has its own.
        terms: What decides, beside sizes, which ops are computed with channels in blocks, and how.
        outputs: Where the graph's lie.
    """

    def __init__(
        self, graph: Graph, *, input_strides: Mapping[Tensor, tuple[int, ...]] | None = None,
        states: Sequence[Tensor] = (), micro_batches: int = 1, replicas: Replicas | None = None,
        frozen: Sequence[Tensor] = (), observation: Observation | None = None, is_strict: bool = False,
        is_alone: bool = False, edge: Edge | None = None,
    ) -> None:
        super().__init__()
        replicas, edge, strides = replicas or Replicas(), edge or Edge(), dict(input_strides or {})
        # The host has room for what the device computes twice. What several replicas make in their only micro-batch
        # is added up from where they made it.
        totals: tuple[Tensor, ...] = ()
        graph = with_late_waits(undone(graph))
        if frozen and not graph.updates and (observation is None or not observation.is_on):
            graph = with_late_look_ups(graph, frozen)
        if observation is None or not observation.is_on:
            graph = with_look_ups_for_each(with_products_of_views(graph))
        if micro_batches > 1 or replicas.count == 1:
            graph, totals = with_totals(graph)
        # Sums are made in another order: how many micro-batches an iteration has may not decide that.
        packs_ahead = bool(frozen) and not graph.updates
        self.terms = Terms(is_strict, packs_ahead, packs_ahead or is_alone)
        if observation is None or not observation.is_on:
            graph = with_lines(graph, self._in_blocks)
        self.graph, states = graph, (*states, *totals)
        self.runs = micro_batches * replicas.count
        self.banked = states_of_replicas(graph) if replicas.count > 1 else frozenset()
        may_show = edge.shows and self.runs == 1 and not states
        self.frozen = {index for index, tensor in enumerate(graph.inputs) if tensor in set(frozen)}
        self.is_hoisting = self.runs > 1 or bool(self.frozen)
        self.multiplies_bfloats = has_bfloat_products() and not is_strict
        self._written = dict(edge.written)
        self._lends = may_show and not self._written
        self.memory, self.uses = Memory(), Uses(graph)
        self._made_once = MadeOnce(self.memory, self.frozen, has_states=packs_ahead)
        expected, free = edge.expected(graph), {graph.outputs[number] for number in edge.saved}
        self.orders = Orders(self.uses, expected, free, are_kept=bool(strides or expected))
        self.outputs = Outputs(graph, edge, self.memory, self.orders, self._ends_as_bfloats, may_show=may_show)
        self._bfloats = self.outputs.bfloats
        self.floats = KeptFloats(self._emit_again, self.memory.scratch, lambda: self.steps[-1])
        self._folded = FoldedChains(self.uses, self.memory, self._emit_again)
        self.values = Values(self.floats)
        self.streams = RandomStreams(graph, self.memory)
        self.sums = Sums(graph, replicas, self.memory)
        self.observation = observation if observation is not None and observation.is_on else None
        self.fused: dict[Op, tuple[tuple[Op, ...], Fusion]] = {}
        for part in with_bodies(graph) if self.observation is None else ():
            self.fused.update(find_fusions(part, self.uses.readers, self.uses.kept))
        blocked = graph if self.observation is None else None
        last = with_channels_last({**strides, **expected})
        crossing = Crossing(
            {tensor for tensor in graph.inputs if _is_given_in_blocks(tensor, strides)}, edge.crossing(graph),
        )
        self.layouts = Layouts(blocked, self.uses, self.fused, self.terms, last, free, crossing)
        self.fused = {op: found for op, found in self.fused.items() if not self.layouts.takes(op)}
        self.absorbed = {op for ops, _ in self.fused.values() for op in ops[:-1]} | self.layouts.absorbed
        self.steps: list[Step] = []
        self.loops: list[tuple[Step, Step]] = []
        self._current: Op | None = None  # which emits
        self._is_there: Any = True  # whether a plan has what is emitted
        self._brought = 0  # steps of chains that have become steps of this op
        self._concatenations = self._find_concatenations(graph, {*frozen, *states})
        self._counters: list[HostTensor] = []  # of the loops around
        self._bind_inputs(strides, set(states), edge.bfloat_inputs)
        self.sums.allocate(self.values.states)

    def _in_blocks(self, graph: Graph) -> set[Op]:
        """Return the ops of a graph that would be computed with channels in blocks."""
        uses, fused = Uses(graph), dict[Op, tuple[tuple[Op, ...], Fusion]]()
        for part in with_bodies(graph):
            fused.update(find_fusions(part, uses.readers, uses.kept))
        layouts = Layouts(graph, uses, fused, self.terms)
        return {*layouts.runs, *layouts.absorbed}

    def _bind_inputs(
        self, strides: dict[Tensor, tuple[int, ...]], states: set[Tensor], bfloats: Collection[Tensor],
    ) -> None:
        for index, tensor in enumerate(self.graph.inputs):
            place = Place.STATE if tensor in states else Place.INPUT
            place = Place.BANK if tensor in self.banked else place
            if place is Place.STATE and tensor.role is Role.ACCUMULATOR and self.sums.is_folding:
                place = Place.ACCUMULATOR
            dtype = DType.BFLOAT if tensor in bfloats else tensor.dtype
            if tensor in self.layouts.crossing.given:
                self.layouts.held[tensor] = self.memory.storage(blocked_shape(tensor.shape), dtype, place, index)
                continue
            held = self.memory.storage(tensor.shape, dtype, place, index, strides.get(tensor))
            self.values.by_tensor[tensor] = held
            if tensor in states:
                self.values.states[tensor] = held

    # ------------------------------------------------------------------ what else records may ask
    def all_reduced(self, total: Tensor) -> HostTensor:
        """Emit the sum of what all replicas have accumulated, and return where it lies."""
        op = self._current
        assert op is not None
        if not self.sums.is_folding:
            return self.values.by_tensor[total]
        if not self.sums.is_folded(total):
            self._current = self.uses.makers.get(total)  # a copy to row-major order is part of each micro-batch
            value, self._current = self.value(total), op
            for step in self.sums.fold(op, total, value):
                self._append(step)
        return self.sums.slots[total][0]

    def foldable(self, tensor: Tensor) -> HostTensor | None:
        """Return where a value lies that a chain stores for the op that is emitted alone; None for any other."""
        held = self.values.by_tensor.get(tensor)
        is_plain = self.observation is None and held is not None and not self._is_in_blocks
        if not is_plain or held is None or self._current is None:
            return None
        return held if self._folded.foldable(self._current, tensor, held) else None

    def fold_chain(self, tensor: Tensor, fold: ChainFold) -> None:
        """Let the chain that stores such a value reduce it instead, as a step of the op that is emitted if it may."""
        self._brought += self._folded.fold(self.values.by_tensor[tensor], fold, self.steps)

    def random_state(self, op: Op) -> HostTensor:
        """Return LONG[4]: seed, replica, number of the op, micro-batch counter."""
        return self._of_trip(self.streams.of_op(op))

    def rounding(self, op: Op, result: Tensor) -> Rounding:
        """Return how a half result of an op is rounded, as the precision pass has said in its attributes."""
        rounding = self.streams.of_rounding(op, result)
        return rounding if rounding.random is None else Rounding(self._of_trip(rounding.random), rounding.overflow)

    def _of_trip(self, state: HostTensor) -> HostTensor:
        """Return the words of a stream in a trip of the loops around."""
        for counter in self._counters:
            outer, state = state, self.scratch(state.shape, DType.LONG)
            self.step(FORK, [state], [outer, counter])
        return state

    def step(
        self, kernel: Kernel[I, S], outputs: Sequence[HostTensor], inputs: Sequence[HostTensor], *,
        ints: I | tuple[()] = (), scalars: S | tuple[()] = (), items: int = 1, grain: int = 1,
        scratch_bytes: int = 0, reads_outputs: bool = False, together: bool = False, adds_up: bool = False,
        joining: Joining | None = None, writes: Sequence[Blocks | None] = (), samples: Samples | None = None,
        overwrites: Sequence[frozenset[int]] = (), rounds: int = 1, op: Op | None = None,
    ) -> None:
        """Append a kernel call; none where there is nothing to write."""
        if items <= 0 or (outputs and not any(held.num_elements for held in outputs)):
            return
        kernel.check(len(outputs) + len(inputs), ints, scalars)
        for held in (*outputs, *inputs):
            is_within = self.memory.is_within(held)
            if not is_within or (type(held) is EitherTensor and not self.memory.is_within(held.other)):
                raise VerifyError(f"step {kernel.name}: {held} reaches beyond its allocation")
        if together and self._depth:
            assert self._current is not None
            raise ConstraintError(
                f"{self._current.target} is in a branch or a loop, which replicas may leave at different times",
                source=self._current.source, remedy="move the normalisation out of it, or set batch_norm_group_size=1",
            )
        self._append(Step(
            op or self._current, kernel, tuple(outputs), tuple(inputs), ints, scalars, items, largest(1, grain),
            scratch_bytes, reads_outputs, is_hoistable=not together, together=together, adds_up=adds_up,
            joining=joining, writes=tuple(writes), samples=samples, overwrites=tuple(overwrites), rounds=rounds,
        ))

    def stays_floats(self, held: HostTensor) -> bool:
        """Whether what an op computes there is no result that becomes halves as it is stored."""
        return all(computed.buffer != held.buffer for _, _, computed in self._casts_due)

    def packs_once(self, held: HostTensor) -> bool:
        """Whether a value of weights that seldom change lies there: what is packed of it serves many calls."""
        return self.terms.packs_ahead and self._made_once.holds(held)

    @contextmanager
    def only_where(self, flag: Any) -> Iterator[None]:
        """Let a plan have the steps that are emitted meanwhile only where a flag is not 0."""
        around = self._is_there
        if flag is not True:
            self._is_there = flag if around is True else around * flag
        yield
        self._is_there = around

    # ------------------------------------------------------------------ control flow
    def body(self, body: Graph, operands: Sequence[HostTensor]) -> list[HostTensor]:
        """Append the steps of a graph that an op runs."""
        current = self._current
        with self.values.of_body(body.inputs, operands):
            self._depth += 1
            self._emit_ops(body.ops)
            self._depth -= 1
        self._current = current
        return [self.values.by_tensor[tensor] for tensor in body.outputs]

    def place(self, mark: Mark) -> None:
        """Put a mark before the next step."""
        self._append(Step(self._current, None, (), (), is_hoistable=False, mark=mark))

    def go(self, mark: Mark, unless: HostTensor | None = None) -> None:
        """Append a jump."""
        read = () if unless is None else (unless,)
        self._append(Step(self._current, None, (), read, is_hoistable=False, goes_to=mark))

    @contextmanager
    def loop(self, counter: HostTensor) -> Iterator[None]:
        """Take note of the first and the last step of a loop."""
        first, last = (Step(self._current, None, (), (), is_hoistable=False, mark=Mark()) for _ in range(2))
        self._append(first)
        self._counters.append(counter)
        self._depth += 1
        yield
        self._depth -= 1
        self._counters.pop()
        self._append(last)
        self.loops.append((first, last))

    # ------------------------------------------------------------------ planning
    def plan(self) -> HostPlan:
        """Emit every op, decide what is hoisted, and place all storage."""
        return arranged(self.emitted())

    def emitted(self) -> Emitted:
        """Emit every op."""
        self._emit_ops(self.graph.ops)
        outputs, direct = self._collect_outputs()
        self._write_back_states()
        self.floats.drop_halves({held.buffer for step in self.steps for held in step.read} | {
            held.buffer for held in outputs
        })
        by_tensor, inputs = self.values.by_tensor, self.graph.inputs
        written = {} if self.observation is not None else self._written
        over_inputs = write_inputs(self.steps, self.memory.allocations, outputs, {
            result: by_tensor[inputs[place]] for result, place in written.items()
        })
        direct = [is_direct and index not in over_inputs for index, is_direct in enumerate(direct)]
        return Emitted(
            steps=self.steps, allocations=self.memory.allocations, loops=self.loops, sums=self.sums, runs=self.runs,
            is_hoisting=self.is_hoisting, frozen=self.frozen, states=self.values.states, outputs=outputs,
            output_is_direct=direct, over_inputs=over_inputs, constants=self.memory.constants,
            random_slots=self.streams.words, random_streams=tuple(self.streams.rows),
            shared_streams=tuple(self.streams.shared),
            # What looks at every result needs each of them as soon as it is made.
            awaited=only_awaited(self.uses.readers, self.uses.kept) if self.observation is None else frozenset(),
        )

    def _emit_ops(self, ops: Sequence[Op]) -> None:
        if self.observation is not None:
            self._emit_observed(ops, self.observation)
            return
        for group in grouped(ops, self._joins):
            if self._joins(group[0]):
                self._emit_chain(group)
            else:
                self._emit_single(group[0])

    def _emit_observed(self, ops: Sequence[Op], observation: Observation) -> None:
        """Emit ops one by one, each with the steps that look at its results."""
        for op in ops:
            if can_join(op):
                self._emit_chain((op,))
            else:
                self._emit_single(op)
            self._current = op
            results = [(tensor, self.value(tensor)) for tensor in observation.of(op) if tensor in self.values.by_tensor]
            if observation.traps and not op.bodies:
                observation.emit_traps(op, [held for _, held in results], self)
            for tensor, held in results if observation.counts else ():
                observation.emit_count(op, tensor, held, self._rows_of(observation), self)

    def _rows_of(self, observation: Observation) -> HostTensor:
        if observation.rows is None:
            most = sum(len(op.outputs) for op in walk_ops(self.graph.ops))
            observation.rows = self.memory.allocate(TALLY_WORDS * 8 * most, Place.STATE).number
        return HostTensor(observation.rows, 0, (TALLY_WORDS,), (1,), DType.LONG)

    def _find_concatenations(self, graph: Graph, constant: set[Tensor]) -> Concatenations | None:
        """Return where chains store pieces of a whole; None where every result is looked at by itself."""
        if self.observation is not None:
            return None
        changing = varying(graph, constant) if self.is_hoisting else None

        def is_copied(op: Op) -> bool:
            return op not in self.fused and op not in self.absorbed and not self.layouts.takes(op)

        return Concatenations(graph, self.uses, lambda op: can_join(op) and is_copied(op), is_copied, changing)

    def _emit_chain(self, chain: Sequence[Op]) -> None:
        self._current = chain[0]
        self._chain = frozenset(chain)
        self._is_in_blocks = self._chain <= self.layouts.elementwise
        shape = chain[0].outputs[0].shape
        self._order = None if self._is_in_blocks else self._order_of_chain(chain)
        stored = emit_chain(chain, self, blocked_shape(shape) if self._is_in_blocks else shape, self._order)
        self.floats.note_chain(stored)
        if stored.results and stored.results[0][1].num_elements and not self._is_in_blocks:
            self._folded.note(self.steps[-1], stored)
        self._chain, self._is_in_blocks, self._order = frozenset(), False, None
        self._emit_casts(len(self.steps))

    def _order_of_chain(self, chain: Sequence[Op]) -> tuple[int, ...] | None:
        """Return the order in which a chain goes through elements, or None for row-major."""
        stored = [result for op in chain for result in op.outputs if self.wanted_outside(result)]
        order = self.orders.of_chain(chain, stored, self.values.by_tensor)
        return None if order is not None and draws_bits(chain, self, order) else order

    def _emit_again(self, step: Step, stored: Stored) -> None:
        """Let a step store what a chain stores by now; without any of that there is no such step."""
        if not stored.results and not stored.folds:
            self.steps = [other for other in self.steps if other is not step]
            return
        emit_folded(stored)
        step.become(self.steps.pop())

    def _emit_single(self, op: Op) -> None:
        self._current, begin, self._brought = op, len(self.steps), 0
        if op in self.absorbed:
            return
        if self._shows_floats(op):
            floats = self.floats.of(self.values.by_tensor[op.inputs[0]])
            if floats is None:
                self._emit_chain((op,))
            else:
                self.alias(op.outputs[0], floats)
            return
        spec = spec_of(op)
        if (run := self.layouts.runs.get(op)) is not None and run.form is not None:
            run.form.emit(run.ops, self)
        elif op in self.fused:
            ops, fusion = self.fused[op]
            fusion.emit(ops, self)
        elif is_transfer(op):  # as it lies in row-major order, in any memory
            self._emit_outside(op, tuple(self._laid_out(operand) for operand in op.inputs))
        elif spec is None or spec.emit is None:  # ATen, which sees the arena as tensors
            self._emit_outside(op, tuple(self._shown_to_torch(op, operand) for operand in op.inputs))
        else:
            self._is_moving = self._moves_bfloats(op)
            spec.emit(op, self)
            self._is_moving = False
        self._emit_casts(begin - self._brought)

    def _laid_out(self, tensor: Tensor) -> HostTensor:
        """Return where a value lies row-major; steps that bring it there belong to the op that has made it."""
        op, self._current = self._current, self.uses.makers.get(tensor)
        held, self._current = self.value(tensor), op
        return held

    def _emit_outside(self, op: Op, inputs: tuple[HostTensor, ...]) -> None:
        """Append a step that no kernel runs."""
        outputs = tuple(self.output(result) for result in op.outputs)
        self._append(Step(op, None, outputs, inputs, is_hoistable=False))

    def _emit_casts(self, begin: int) -> None:
        """Convert what was computed in another type: in the steps of the op, from ``begin`` on, or in one more."""
        steps = self.steps[begin:]
        for tensor, rounded, computed in self._casts_due:
            held, end = self.values.by_tensor[tensor], len(self.steps)
            if not computed.is_contiguous:  # both lie in one order: as it is in memory
                held, computed = held.permuted(computed.order), computed.permuted(computed.order)
            rounding = self.rounding(self.uses.makers[rounded], rounded)
            # Within a loop the random words of a trip come from steps of their own: these go before the op's.
            self.steps[begin:] = [*self.steps[end:], *self.steps[begin:end]]
            result = Computed(computed, held, rounding)
            if held.dtype is DType.HALF and end_steps(steps, result):
                self.floats.note_ended(steps, result)
                continue
            self.floats.note_chain(emit_cast(self, held, computed, rounding))
        self._casts_due = []

    def _shown_to_torch(self, op: Op, tensor: Tensor) -> HostTensor:
        """Return where a step that calls torch finds an operand row-major: in the arena, or where the caller has it."""
        self.layouts.make_plain(tensor, self.values, self)
        held = self.values.by_tensor[tensor]
        if held.dtype is DType.BFLOAT:
            return self.value(tensor)
        places = (Place.ARENA, Place.INPUT) if self._takes_lent(op) else (Place.ARENA,)
        return held if held.is_contiguous and self.memory.of(held).place in places else self._copied(held)

    def _takes_lent(self, op: Op | None) -> bool:
        """Whether a step that calls torch may have what lies elsewhere than in the arena."""
        return self._lends and op is not None and not is_collective(op) and op.target != WAIT

    def _copied(self, held: HostTensor) -> HostTensor:
        fresh = self.scratch(held.shape, held.dtype)
        emit_copy(self, fresh, held)
        return fresh

    def _write_back_states(self) -> None:
        """Copy new values of states that were not updated in place; last, since older steps read the old value.

        An output that shows a state as it was is one of these older steps.
        """
        self._current = None
        by_tensor, states = self.values.by_tensor, self.values.states
        pending = [(s, v) for s, v in self.graph.updates if by_tensor[v].buffer != states[s].buffer]
        # A new value may be a view of another state that is about to be overwritten.
        state_buffers = {held.buffer for held in states.values()}
        sources = [
            self._copied(by_tensor[value]) if by_tensor[value].buffer in state_buffers else by_tensor[value]
            for _, value in pending
        ]
        makers = {result: op for op in self.graph.ops if op.leg is Leg.UPDATE for result in op.outputs}
        for (state, value), source in zip(pending, sources, strict=True):
            self._current = makers.get(value)
            emit_copy(self, states[state], source)

    def _collect_outputs(self) -> tuple[list[HostTensor], list[bool]]:
        """Place every output."""
        self._current = None
        outputs, direct = [], []
        # What a step that calls torch reads or writes stays in the arena, unless the caller's memory is lent to it.
        pinned = {
            held.buffer for step in self.steps if step.is_generic and not is_transfer(step.op)
            for held in (*step.inputs, *step.outputs) if not (self._takes_lent(step.op) and held.is_contiguous)
        }
        for number, tensor in enumerate(self.graph.outputs):
            lying = self.layouts.crossing_in_blocks(tensor)
            if lying is None:
                self.layouts.make_plain(tensor, self.values, self)
                lying = self.values.by_tensor[tensor]
            held, is_direct = self.outputs.place(number, lying, pinned, self)
            outputs.append(held)
            direct.append(is_direct)
        return outputs, direct

    def _ends_as_bfloats(self, floats: HostTensor, bfloats: HostTensor) -> bool:
        """Let the steps that compute a whole result store it as bfloats as well, if they do; nothing else shows it."""
        order = bfloats.order
        floats, bfloats = floats.permuted(order), bfloats.permuted(order)
        is_whole = self.memory.of(floats).place is Place.ARENA and self.memory.is_all_of(floats)
        shown = sum(held.buffer == floats.buffer for held in self.values.by_tensor.values())
        is_straight = all(step.goes_to is None for step in self.steps)  # of branches that make it one runs
        if self.observation is not None or not is_whole or not bfloats.is_contiguous or shown > 1 or not is_straight:
            return False
        return end_steps(self.steps, Computed(floats, bfloats, TO_NEAREST))

    def _append(self, step: Step) -> None:
        if self._depth:  # what a body computes belongs to where the op runs that owns the body
            step.is_hoistable = False
        step.is_there = self._is_there
        self._made_once.note(step)
        self.steps.append(step)


def _is_given_in_blocks(tensor: Tensor, strides: Mapping[Tensor, tuple[int, ...]]) -> bool:
    """Whether an input lies with its channels in blocks: by its strides, which are of five dimensions then."""
    given = strides.get(tensor, ())
    return len(given) == 5 and len(tensor.shape) == 4 and given == strides_with_lanes_third(tensor.shape)
