"""From placed ops to a flat list of kernel calls: what each op emits, and where its values lie.

The plan may choose how a value is computed; what it is stays what the Program means. Cycle numbers never come
from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torchipu._kernels.table.control import FORK
from torchipu._kernels.table.kernel import I, Kernel, S
from torchipu._kernels.table.observe import TALLY_WORDS
from torchipu.distributed.order import Replicas
from torchipu.errors import ConstraintError, VerifyError
from torchipu.host.arrangement import Emitted, arranged
from torchipu.host.collectives import only_awaited, with_late_waits
from torchipu.host.concatenation import Concatenations, varying
from torchipu.host.edge import Edge, Outputs
from torchipu.host.emit.blocked_layout import blocked_shape
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.vectors import has_bfloat_products
from torchipu.host.fusion import find_fusions
from torchipu.host.groups import grouped
from torchipu.host.kept_floats import KeptFloats
from torchipu.host.late_look_ups import with_late_look_ups
from torchipu.host.layouts import Layouts
from torchipu.host.lines import with_lines
from torchipu.host.look_ups_for_each import with_look_ups_for_each
from torchipu.host.memory import Memory
from torchipu.host.observation import Observation
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
from torchipu.optable.blocked import Sizes, Terms
from torchipu.optable.blocks import Blocks
from torchipu.optable.chain import can_join, is_widening
from torchipu.optable.collective import WAIT, is_collective
from torchipu.optable.emission import Stored, draws_bits, emit_cast, emit_chain
from torchipu.optable.fusion import Fusion
from torchipu.optable.host_tensor import TO_NEAREST, HostTensor, Rounding
from torchipu.optable.marks import BFLOATS
from torchipu.optable.planner import Joining, Mark
from torchipu.optable.samples import Samples
from torchipu.optable.spec import spec_of
from torchipu.optable.transfer import is_transfer

FACTORS = {"mm": "", "bmm": "", "addmm": "self", "baddbmm": "self"}
"""Products by their kind, and the operand of each that is no factor."""


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
        is_strict: Whether convolutions are the sums that define them, and no transforms are made; and products of
            bfloat16 are products of floats.
        is_alone: Whether no other program computes a part of the same, whose values would have to have the same bits.
        edge: What the caller has and expects.

    Attributes:
        graph: The one whose ops are emitted: what is recomputed on the device is not.
        runs: Micro-batches and replicas of an update.
        multiplies_bfloats: Whether products of what torch has as bfloat16 are products of bfloats, not of floats.
        banked: States of which each replica has its own.
        terms: What decides, beside sizes, which ops are computed with channels in blocks, and how.
        orders: In which values may lie.
        outputs: Where these lie.
    """

    def __init__(
        self, graph: Graph, *, input_strides: Mapping[Tensor, tuple[int, ...]] | None = None,
        states: Sequence[Tensor] = (), micro_batches: int = 1, replicas: Replicas | None = None,
        frozen: Sequence[Tensor] = (), observation: Observation | None = None, is_strict: bool = False,
        is_alone: bool = False, edge: Edge | None = None,
    ) -> None:
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
        expected, free = edge.expected(graph), {graph.outputs[number] for number in edge.saved}
        self.orders = Orders(self.uses, expected, free, are_kept=bool(strides or expected))
        self.outputs = Outputs(graph, edge, self.memory, self.orders, self._ends_as_bfloats, may_show=may_show)
        self._bfloats = self.outputs.bfloats
        self.floats = KeptFloats(self._emit_again, self.memory.scratch, lambda: self.steps[-1])
        self.values = Values(self.floats)
        self.streams = RandomStreams(graph, self.memory)
        self.sums = Sums(graph, replicas, self.memory)
        self.observation = observation if observation is not None and observation.is_on else None
        self.fused: dict[Op, tuple[tuple[Op, ...], Fusion]] = {}
        for part in with_bodies(graph) if self.observation is None else ():
            self.fused.update(find_fusions(part, self.uses.readers, self.uses.kept))
        blocked = graph if self.observation is None else None
        last = with_channels_last({**strides, **expected})
        self.layouts = Layouts(blocked, self.uses, self.fused, self.terms, last, free)
        self.fused = {op: found for op, found in self.fused.items() if not self.layouts.takes(op)}
        self.absorbed = {op for ops, _ in self.fused.values() for op in ops[:-1]} | self.layouts.absorbed
        self.steps: list[Step] = []
        self.loops: list[tuple[Step, Step]] = []
        self._joining: dict[Op, bool] = {}  # whether ops are part of chains, as far as that was asked
        self._current: Op | None = None  # which emits
        self._chain: frozenset[Op] = frozenset()  # with which others
        self._is_in_blocks = False  # the chain that is emitted
        self._is_moving = False  # what emits, bfloats
        self._concatenations = self._find_concatenations(graph, {*frozen, *states})
        self._order: tuple[int, ...] | None = None  # of dimensions, in which it goes through elements
        self._casts_due: list[tuple[Tensor, Tensor, HostTensor]] = []  # and how they are rounded
        self._counters: list[HostTensor] = []  # of the loops around
        self._depth = 0  # of loops and bodies
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
            held = self.memory.storage(tensor.shape, dtype, place, index, strides.get(tensor))
            self.values.by_tensor[tensor] = held
            if tensor in states:
                self.values.states[tensor] = held

    # ------------------------------------------------------------------ what records may ask (HostPlanner)
    def value(self, tensor: Tensor, dtype: DType | None = None, *, contiguous: bool = True) -> HostTensor:
        """Return where a value lies, cast or copied to row-major order where asked for.

        A cast alone keeps the order in which the elements lie.
        """
        if self._is_in_blocks and tensor.num_elements > 1:
            return self.blocked(tensor)
        self.layouts.make_plain(tensor, self.values, self)
        if dtype is None and not self._takes_bfloats and self.values.by_tensor[tensor].dtype is DType.BFLOAT:
            dtype = DType.FLOAT
        return self.values.given(self, tensor, dtype, contiguous=contiguous)

    def stored_type(self, tensor: Tensor) -> DType:
        """Return as what a value lies: halves or bfloats where there are no floats, and none may be left."""
        held = self.values.by_tensor.get(tensor)
        if held is not None and held.dtype is DType.BFLOAT:
            return DType.BFLOAT
        has_halves = tensor.dtype is DType.HALF and not self.may_have_floats(tensor)
        return DType.HALF if has_halves else DType.FLOAT

    def may_have_floats(self, tensor: Tensor) -> bool:
        """Whether a half's floats are there, or its maker can leave them."""
        held = self.values.by_tensor.get(tensor)
        return held is not None and self.floats.may_have(held)

    def output(
        self, tensor: Tensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        """Return row-major storage for a result, which becomes half as another one would where that is given."""
        if self._is_in_blocks:
            return self.blocked_output(tensor)
        if self._order is not None:
            return self._output_in_order(tensor, self._order).permuted(self._order)
        stored = self._in_concatenation(tensor) or self.scratch(tensor.shape, self._stored_type(tensor))
        self.values.by_tensor[tensor] = stored
        if dtype is None or dtype is tensor.dtype:
            return stored
        computed = self.scratch(tensor.shape, dtype)
        self._casts_due.append((tensor, rounded_as or tensor, computed))
        return computed

    def product_output(self, tensor: Tensor, like: HostTensor | None = None) -> HostTensor:
        """Return storage for a product of bfloats: of bfloats too where nothing reads floats."""
        order = None if like is None else self.orders.like(like, tensor)
        dtype = DType.BFLOAT if self.observation is None and self._is_read_as_bfloats(tensor) else tensor.dtype
        lying = self.scratch(tensor.shape if order is None else [tensor.shape[dim] for dim in order], dtype)
        stored = lying if order is None else lying.permuted([order.index(dim) for dim in range(len(order))])
        self.values.by_tensor[tensor] = stored
        return stored

    def _is_read_as_bfloats(self, tensor: Tensor) -> bool:
        """Whether a value leaves the graph as bfloats, if it does, and is read by what takes bfloats as they lie."""
        readers = self.uses.readers.get(tensor, ())
        if tensor in self.uses.kept and tensor not in self._bfloats:
            return False
        return all(self._reads_bfloats(op, tensor) for op in readers)

    def _reads_bfloats(self, op: Op, tensor: Tensor) -> bool:
        """Whether an op takes an operand as bfloats: a product, a chain, or what only moves it for such ops."""
        spec = spec_of(op)
        if op.attrs.get(BFLOATS) and op.kind in FACTORS:
            return self.multiplies_bfloats and op.operand(FACTORS[op.kind]) is not tensor
        if spec is not None and spec.moves and len(op.inputs) == 1:
            return self._is_read_as_bfloats(op.outputs[0])
        return self._joins(op)

    @property
    def _takes_bfloats(self) -> bool:
        """Whether what is emitted reads bfloats as they lie: a chain converts them as they pass, or they are moved."""
        return self._is_moving or bool(self._chain)

    def _moves_bfloats(self, op: Op) -> bool:
        """Whether an op only moves elements, and all of them lie as bfloats."""
        spec, floats = spec_of(op), [tensor for tensor in op.inputs if tensor.dtype is DType.FLOAT]
        held = [self.values.by_tensor.get(tensor) for tensor in floats]
        lie_so = [each is not None and each.dtype is DType.BFLOAT for each in held]
        return spec is not None and spec.moves and bool(floats) and all(lie_so) and self.observation is None

    def _stored_type(self, tensor: Tensor) -> DType:
        """Return the type in which a result is stored: a chain converts what the caller alone reads."""
        if self._is_moving and tensor.dtype is DType.FLOAT:
            return DType.BFLOAT
        is_last = tensor in self._bfloats and self._chain.issuperset(self.uses.readers.get(tensor, ()))
        return DType.BFLOAT if is_last and self._chain and self.observation is None else tensor.dtype

    def _in_concatenation(self, tensor: Tensor) -> HostTensor | None:
        """Return where a chain's result lies beside others, or the whole where such results lie already."""
        if self._concatenations is None or self._depth:
            return None
        if self._chain:
            return self._concatenations.place_of(tensor, lambda whole: self.scratch(whole.shape, whole.dtype))
        return self._concatenations.memory_of(tensor)

    def placed_output(self, tensor: Tensor) -> HostTensor:
        """Return storage for a result by any strides, where it is part of a whole, else row-major storage."""
        if self._concatenations is None or self._depth or self._is_moving:
            return self.output(tensor)
        place = self._concatenations.place_of(tensor, lambda whole: self.scratch(whole.shape, whole.dtype))
        if place is None:
            return self.output(tensor)
        self.values.by_tensor[tensor] = place
        return place

    def value_as_held(self, tensor: Tensor, dtype: DType | None = None) -> HostTensor:
        """Return where a value lies: row-major, or in another order of its dimensions where orders are kept."""
        if self.orders.are_kept and not self._is_in_blocks:
            held = self.value(tensor, dtype, contiguous=False)
            if held.is_dense:
                return held
        return self.value(tensor, dtype)

    def output_as_held(
        self, tensor: Tensor, held: HostTensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        """Return storage for a result, in the order in which an operand lies where it may lie so."""
        is_cast, rounded = dtype not in (None, tensor.dtype), rounded_as or tensor
        is_plain = (self._is_in_blocks or self._in_concatenation(tensor) is not None
                    or (is_cast and not self._rounds_anywhere(rounded)))
        order = None if is_plain else self.orders.like(held, tensor)
        if order is None:
            return self.output(tensor, dtype, rounded_as=rounded_as)
        stored = self._output_in_order(tensor, order)
        if not is_cast:
            return stored
        assert dtype is not None
        lying = self.scratch([tensor.shape[dim] for dim in order], dtype)
        computed = lying.permuted([order.index(dim) for dim in range(len(order))])
        self._casts_due.append((tensor, rounded, computed))
        return computed

    def _rounds_anywhere(self, result: Tensor) -> bool:
        """Whether a half result is rounded without random bits, which are drawn by place."""
        return result.dtype is DType.HALF and self.streams.of_rounding(self.uses.makers[result], result).random is None

    def expected_order(self, tensor: Tensor) -> tuple[int, ...] | None:
        """Return the order of dimensions in which the caller expects a result; None where nobody does."""
        return self.orders.of_expected(tensor)

    def expected_output(self, tensor: Tensor) -> HostTensor:
        """Return storage for a result, in the order in which the caller expects it; row-major where nobody does."""
        order = self.orders.of_expected(tensor)
        return self.output(tensor) if order is None else self._output_in_order(tensor, order)

    def _output_in_order(self, tensor: Tensor, order: Sequence[int]) -> HostTensor:
        """Return storage for a value that lies in an order of its dimensions."""
        stored = self.scratch([tensor.shape[dim] for dim in order], self._stored_type(tensor))
        strides = self.orders.strides_in(tensor, order)
        self.values.by_tensor[tensor] = replace(stored, shape=tensor.shape, strides=strides)
        return self.values.by_tensor[tensor]

    def blocked(self, tensor: Tensor) -> HostTensor:
        """Return where a value of ``[N, C, H, W]`` lies in the blocked layout, brought there if need be."""
        outside = self._is_in_blocks, self._chain
        self._is_in_blocks, self._chain = False, frozenset()
        held = self.layouts.blocked(tensor, self)
        self._is_in_blocks, self._chain = outside
        return held

    def is_blocked(self, tensor: Tensor) -> bool:
        """Whether a value lies in the blocked layout already."""
        return tensor in self.layouts.held

    def has_channels_last(self, tensor: Tensor) -> bool:
        """Whether a value has its channels last, where it lies row-major."""
        return tensor in self.layouts.rows

    def blocked_output(self, tensor: Tensor) -> HostTensor:
        """Return storage in the blocked layout for a result."""
        return self.layouts.output(tensor, self)

    def blocked_view(self, tensor: Tensor, source: Tensor) -> None:
        """Say that a result lies in the blocked layout as another value does."""
        self.layouts.held[tensor] = self.blocked(source)

    def image_sizes(self, tensor: Tensor) -> Sizes:
        """Return the sizes of the images that a value holds, whether channels come second or last."""
        return self.layouts.sizes(tensor)

    def alias(self, tensor: Tensor, view: HostTensor) -> None:
        """Say that a result is a view of storage that exists."""
        self.values.by_tensor[tensor] = view

    def update_in_place(self, state: Tensor, result: Tensor) -> HostTensor:
        """Return the storage of a state, which from now on holds ``result``."""
        held = self.values.by_tensor[state]
        self.values.by_tensor[result] = held
        return held

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

    def scratch(self, shape: Sequence[int], dtype: DType = DType.FLOAT) -> HostTensor:
        """Return fresh row-major storage in the arena."""
        return self.memory.scratch(shape, dtype)

    def constant(self, values: Sequence[int] | Sequence[float], dtype: DType) -> HostTensor:
        """Return 1-d storage that holds constants."""
        return self.memory.constant(values, dtype)

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

    def wanted(self, tensor: Tensor) -> bool:
        """Whether anything reads this result."""
        return self.uses.is_read(tensor)

    def wanted_outside(self, tensor: Tensor) -> bool:
        """Whether anything outside the chain being emitted reads this result."""
        return self.uses.is_read(tensor, except_by=self._chain)

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
            if not self.memory.is_within(held):
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

    def _joins(self, op: Op) -> bool:
        """Whether an op is elementwise, no fusion has it, and it is not a view of floats that are there."""
        if op not in self._joining:
            is_free = op not in self.fused and op not in self.absorbed and not self.layouts.takes(op)
            self._joining[op] = can_join(op) and is_free and not self._shows_floats(op)
        return self._joining[op]

    def _find_concatenations(self, graph: Graph, constant: set[Tensor]) -> Concatenations | None:
        """Return where chains store pieces of a whole; None where every result is looked at by itself."""
        if self.observation is not None:
            return None
        changing = varying(graph, constant) if self.is_hoisting else None

        def is_copied(op: Op) -> bool:
            return op not in self.fused and op not in self.absorbed and not self.layouts.takes(op)

        return Concatenations(graph, self.uses, lambda op: can_join(op) and is_copied(op), is_copied, changing)

    def _shows_floats(self, op: Op) -> bool:
        """Whether an op makes floats of a half whose maker has left them, or may."""
        return is_widening(op) and self.may_have_floats(op.inputs[0])

    def _emit_chain(self, chain: Sequence[Op]) -> None:
        self._current = chain[0]
        self._chain = frozenset(chain)
        self._is_in_blocks = self._chain <= self.layouts.elementwise
        shape = chain[0].outputs[0].shape
        self._order = None if self._is_in_blocks else self._order_of_chain(chain)
        stored = emit_chain(chain, self, blocked_shape(shape) if self._is_in_blocks else shape, self._order)
        self.floats.note_chain(stored)
        self._chain, self._is_in_blocks, self._order = frozenset(), False, None
        self._emit_casts(len(self.steps))

    def _order_of_chain(self, chain: Sequence[Op]) -> tuple[int, ...] | None:
        """Return the order in which a chain goes through elements, or None for row-major."""
        stored = [result for op in chain for result in op.outputs if self.wanted_outside(result)]
        order = self.orders.of_chain(chain, stored, self.values.by_tensor)
        return None if order is not None and draws_bits(chain, self, order) else order

    def _emit_again(self, step: Step, stored: Stored) -> None:
        """Let a step store what a chain stores by now; without any of that there is no such step."""
        if not stored.results:
            self.steps = [other for other in self.steps if other is not step]
            return
        stored.emit()
        step.become(self.steps.pop())

    def _emit_single(self, op: Op) -> None:
        self._current, begin = op, len(self.steps)
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
        self._emit_casts(begin)

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
            self.layouts.make_plain(tensor, self.values, self)
            held, is_direct = self.outputs.place(number, self.values.by_tensor[tensor], pinned, self)
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
        self.steps.append(step)
