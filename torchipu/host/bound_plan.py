"""A host plan in the engine, with the memory that it runs in."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from torchipu._kernels.abi import CHECKED, Call, KernelTrap, Plan
from torchipu._kernels.table.observe import TALLY_WORDS
from torchipu._kernels.table.round_blocks import ROUND_BLOCKS, Kept
from torchipu._kernels.table.scaling import ReplicaMeanInts, SignalInts
from torchipu.distributed.exchange import Bucket, Exchange
from torchipu.errors import ConstraintError
from torchipu.host import counting
from torchipu.host.arena import aligned_bytes, shared_arena
from torchipu.host.border import typed_view
from torchipu.host.collectives import Flying, bind_collective
from torchipu.host.draws import Draws
from torchipu.host.fences import fence_arenas
from torchipu.host.generic import TORCH_DTYPES, bind_generic
from torchipu.host.kept_states import KeptStates, written_before_the_end
from torchipu.host.lanes import Lanes, Layout, order_of
from torchipu.host.lent import Lent
from torchipu.host.observation import Observation
from torchipu.host.output_memory import OutputMemory, Room
from torchipu.host.packing import Block, Packing
from torchipu.host.placed_states import PlacedStates
from torchipu.host.plan import HostPlan
from torchipu.host.prepared_from import PreparedFrom
from torchipu.host.profiler_ranges import is_recording, ranges
from torchipu.host.resting import RESTING
from torchipu.host.rounding import ints_of
from torchipu.host.statistics import TensorStatistics
from torchipu.host.steps import Step
from torchipu.host.storage import Place, aligned
from torchipu.host.timing import StepTime, step_times
from torchipu.host.transfers import Carrier, Order
from torchipu.host.traps import explained
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.collective import WAIT, is_collective
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.random_streams import ROUNDS_TO_NEAREST
from torchipu.optable.transfer import is_transfer

(
    ARENA, STATE, CONSTANT, BANK, PREPARED, RANDOM, ACCUMULATOR, PARTIAL, SIGNAL, REPLICA, FIRST_EXTERNAL,
) = range(11)
_BUFFERS = {
    Place.ARENA: ARENA, Place.STATE: STATE, Place.CONSTANT: CONSTANT, Place.BANK: BANK, Place.PREPARED: PREPARED,
    Place.RANDOM: RANDOM, Place.ACCUMULATOR: ACCUMULATOR, Place.PARTIAL: PARTIAL, Place.SIGNAL: SIGNAL,
    Place.REPLICA: REPLICA,
}
RANDOM_ROW_BYTES = 32
STEP_BYTES = 4096
"""What a step takes in Python and in the engine, with its storage: an estimate, to bound what is kept."""
_NOTHING = contextlib.nullcontext()


class BoundPlan:
    """A host plan in the engine, with its memory.

    Args:
        host_plan: What to run.
        graph: The graph it was made from.
        replicas: Replicas, each with a bank of states of its own.
        shares_arena: Whether the arena may be that of other plans, where nothing in it outlasts a call.
        observation: What the plan looks at.
        lanes: What runs side by side, each in an arena of its own.
        exchange: Makes the exchange of sums with other processes, given the memory that holds them and its buckets;
            needed where the plan has any.
        order: In which order parts of the body run, in lanes of their own; None for one micro-batch after another.
        carrier: Of the values that go from one process to another.
        placed: States that lie where `place_states` is told, before anything runs.
        roomy: Numbers of outputs that lie in memory which other sizes shall find large enough.
        complex_outputs: Numbers of outputs, pairs ``[..., 2]``, that are complex numbers where they have memory of
            their own.
    """

    def __init__(
        self, host_plan: HostPlan, graph: Graph, replicas: int = 1, *, shares_arena: bool = False,
        observation: Observation | None = None, lanes: Lanes | None = None,
        exchange: Callable[[torch.Tensor, Sequence[Bucket]], Exchange] | None = None, order: Order | None = None,
        carrier: Carrier | None = None, placed: Sequence[Tensor] = (), roomy: Collection[int] = (),
        complex_outputs: Collection[int] = (),
    ) -> None:
        self.order, self.carrier = order, carrier
        self.lanes = lanes = (lanes or Lanes()) if order is None else Lanes(order.lanes)
        self.observation = observation or Observation()
        self.has_run = False
        self.seconds = 0.0  # in the engine, of runs that are timed
        self.is_timed = False
        self.host_plan = host_plan
        self.graph = graph
        self.replicas = replicas
        self.range_names: dict[int, str] = {}  # for torch.profiler, by step
        self.kept: dict[bool, KeptStates | None] = {}
        self.flying: Flying = {}
        self.lent = Lent()
        is_fixed = host_plan.num_prologue > 0 or any(step.kernel is None for step in host_plan.steps)
        # What is fenced off is fenced off for one plan.
        is_fixed = is_fixed or CHECKED
        self.shared = shared_arena(host_plan.arena_bytes) if shares_arena and not is_fixed else None
        # Replicas that meet within a micro-batch cannot take turns in one arena.
        meeting = any(step.together for step in host_plan.steps)
        self.apart = aligned(host_plan.arena_bytes) if meeting else 0
        arena_bytes = self.apart * replicas if meeting else aligned(host_plan.arena_bytes) * lanes.count
        # Runs that are at different steps at a time cannot share what others have freed: each has an arena of its own.
        self.layout = Layout(host_plan, lanes if order is None else Lanes())
        self.arena = aligned_bytes(arena_bytes if self.shared is None else 0)
        if CHECKED:
            apart = aligned(host_plan.arena_bytes) * self.layout.lanes
            fence_arenas(host_plan, self.layout, self.arena.data_ptr(), arena_bytes, apart)
        self.prepared = aligned_bytes(host_plan.prepared_bytes)
        self.banks = aligned_bytes(host_plan.bank_bytes * replicas)
        # Replicas that run one after another take turns with accumulators too.
        self.accumulating = replicas if meeting or order is not None else lanes.replicas
        self.accumulators = aligned_bytes(host_plan.accumulator_bytes * self.accumulating)
        self.sums = aligned_bytes(host_plan.partial_bytes)
        with torch.inference_mode(False):  # what is written later, wherever that is
            self.signals = torch.zeros(8 * max(1, len(host_plan.buckets)), dtype=torch.int64)
        self.replica_numbers = torch.arange(replicas)
        self.exchange = None
        if host_plan.buckets:
            assert exchange is not None
            self.exchange = exchange(self.sums, self._buckets())
        num_inputs = len(graph.inputs)
        self.number_of_input = {tensor: FIRST_EXTERNAL + index for index, tensor in enumerate(graph.inputs)}
        first_placed = FIRST_EXTERNAL + num_inputs + len(graph.outputs)
        self.engine = Plan(first_placed + len(placed))
        states = [host_plan.states[tensor] for tensor in placed]
        self.placed_states = PlacedStates(self.engine, first_placed, states, host_plan.allocations)
        self.state_begins, state_bytes = self._lay_out_states()
        self.state = aligned_bytes(state_bytes)
        self.constants = self._fill_constants()
        self._add_steps(num_inputs)
        if lanes.count == 1 and order is None:
            self.engine.set_phases(host_plan.segments)
        self.engine.bind(
            ARENA, self.arena.data_ptr(), 0, self.apart,
            lane_stride_bytes=0 if order is None else aligned(host_plan.arena_bytes),
        )
        self.engine.bind(PREPARED, self.prepared.data_ptr())
        self.engine.bind(STATE, self.state.data_ptr())
        self.engine.bind(CONSTANT, self.constants.data_ptr())
        self.engine.bind(BANK, self.banks.data_ptr(), 0, host_plan.bank_bytes)
        self.engine.bind(
            ACCUMULATOR, self.accumulators.data_ptr(), 0, host_plan.accumulator_bytes, modulus=self.accumulating,
        )
        self.engine.bind(PARTIAL, self.sums.data_ptr())
        self.engine.bind(SIGNAL, self.signals.data_ptr())
        self.engine.bind(REPLICA, self.replica_numbers.data_ptr(), 0, self.replica_numbers.element_size())
        self.random_rows = self._random_rows()
        shared = set(host_plan.shared_streams)
        num_rows = 0 if self.random_rows is None else len(self.random_rows)
        self.streams_are_shared = [place in shared for place in range(num_rows)]
        if self.random_rows is not None:
            # Writing a word this way takes a tenth of the time of an assignment to a slice.
            words = ctypes.c_int64 * self.random_rows.numel()
            self.random_words = words.from_address(self.random_rows.data_ptr())
            row_bytes = RANDOM_ROW_BYTES * len(self.random_rows)
            self.rows_of_lanes = aligned_bytes(row_bytes * lanes.count)
            if lanes.count > 1 and order is None:
                self._bind_lanes(RANDOM, self.rows_of_lanes, row_bytes)
            else:
                self.engine.bind(RANDOM, self.random_rows.data_ptr())
        if self.observation.counts:
            counting.note(self)
        self.prepared_from = PreparedFrom()
        self.fresh_outputs: list[tuple[int, int]] = []
        self.rooms: list[Room] = []
        self.viewing_outputs: list[tuple[int, bool, int, HostTensor]] = []
        for index, held in enumerate(host_plan.outputs):
            if index in host_plan.over_inputs:
                continue
            if host_plan.output_is_direct[index]:
                number = FIRST_EXTERNAL + num_inputs + index
                self.fresh_outputs.append((index, number))
                room = Room.of(held.shape, TORCH_DTYPES[held.dtype], None if held.is_contiguous else held.strides)
                room = room._replace(is_roomy=index in roomy)
                self.rooms.append(room.of_complex() if index in complex_outputs else room)
                continue
            allocation = host_plan.allocations[held.buffer]
            self.viewing_outputs.append((index, allocation.place is Place.INPUT, allocation.index, held))
        self.are_fresh = len(self.fresh_outputs) == len(host_plan.outputs)

    @cached_property
    def num_bytes(self) -> int:
        """Memory of its own, without an arena that it shares with others."""
        memories = (self.arena, self.prepared, self.state, self.banks, self.accumulators, self.sums, self.constants)
        own = sum(len(memory) for memory in memories) + self.placed_states.num_bytes
        return STEP_BYTES * len(self.host_plan.steps) + own

    def _buckets(self) -> list[Bucket]:
        """Return where the buckets lie in each slot of the sums."""
        plan = self.host_plan
        return [
            Bucket(stretch.begin_bytes, stretch.num_bytes, TORCH_DTYPES[stretch.dtype], plan.slot_bytes)
            for stretch in plan.buckets
        ]

    def _bind_lanes(self, buffer: int, memory: torch.Tensor, lane_bytes: int) -> None:
        """Give every lane its part of a memory."""
        beside = self.lanes.replicas
        self.engine.bind(
            buffer, memory.data_ptr(), 0, lane_bytes, modulus=beside, lane_stride_bytes=lane_bytes * beside,
        )

    def _fill_constants(self) -> torch.Tensor:
        offset = 0
        for number in self.host_plan.constants:
            allocation = self.host_plan.allocations[number]
            allocation.offset_bytes = offset
            offset += aligned(allocation.num_bytes)
        memory = aligned_bytes(offset)
        for number, (values, dtype) in self.host_plan.constants.items():
            begin = self.host_plan.allocations[number].offset_bytes
            held = HostTensor(number, 0, (len(values),), (1,), dtype)
            typed_view(memory, begin, held).copy_(torch.tensor(values, dtype=TORCH_DTYPES[dtype]))
        return memory

    def _lay_out_states(self) -> tuple[dict[int, int], int]:
        """Return where in their memory states lie that are placed nowhere else, by allocation, and its bytes."""
        begins, num_bytes = {}, 0
        for allocation in self.host_plan.allocations:
            if allocation.place is Place.STATE and self.placed_states.number(allocation.number) is None:
                begins[allocation.number] = num_bytes
                num_bytes += aligned(allocation.num_bytes)
        return begins, num_bytes

    def _address(self, held: HostTensor, num_inputs: int) -> tuple[int, int]:
        """Return the engine's buffer number and the byte offset of a view in the first lane."""
        allocation = self.host_plan.allocations[held.buffer]
        offset = held.offset * held.dtype.host_bytes
        if allocation.place is Place.STATE:
            number = self.placed_states.number(held.buffer)
            return (STATE, self.state_begins[held.buffer] + offset) if number is None else (number, offset)
        if allocation.place in _BUFFERS:
            return _BUFFERS[allocation.place], self.layout.begin_bytes(allocation) + offset
        first = FIRST_EXTERNAL + (num_inputs if allocation.place is Place.OUTPUT else 0)
        return first + allocation.index, offset

    def _add_steps(self, num_inputs: int) -> None:
        number = {id(step.mark): n for n, step in enumerate(self.host_plan.steps) if step.mark is not None}
        for position, step in enumerate(self.host_plan.steps):
            if step.mark is not None:
                self.engine.add_jump(position + 1)
                continue
            if step.waits_for is not None:
                assert self.exchange is not None
                self.engine.add_callback(partial(self.exchange.wait, step.waits_for))
                continue
            if step.goes_to is not None:
                condition = [self._address(t, num_inputs) for t in step.inputs]
                self.engine.add_jump(number[id(step.goes_to)], *(condition[0] if condition else ()))
                continue
            if is_transfer(step.op):
                assert step.op is not None and self.carrier is not None
                held = (*step.inputs, *step.outputs)[0]
                self.engine.add_transfer(self.carrier(step.op), *self._address(held, num_inputs))
                continue
            if step.kernel is None:
                assert step.op is not None
                if self.apart:
                    raise ConstraintError(
                        f"{step.op.target} runs through the generic codelet, which does not know replicas that share "
                        "batch normalisations", source=step.op.source,
                        remedy="set batch_norm_group_size=1, or move the op out of the compiled region",
                    )
                self.engine.add_callback(self._callback(step, step.op))
                continue
            # Floats that stay in scratch have no address: that of their halves stands in.
            gone = {ending.place: ending.halves for ending in step.endings if ending.item_floats}
            outputs = [gone.get(place, held) for place, held in enumerate(step.outputs)]
            # Halves that are not written have no address either: that of the floats stands in.
            ended = [
                held for ending in step.endings for held in (
                    step.outputs[ending.place] if ending.keeps is Kept.FLOATS else ending.halves,
                    ending.rounding.random,
                ) if held
            ]
            arguments = (*outputs, *step.inputs, *ended)
            places = [self._address(t, num_inputs) for t in arguments]
            strides = [self.layout.stride_bytes(self.host_plan.allocations[t.buffer]) for t in arguments]
            self.engine.add_step(
                step.kernel, [p[0] for p in places], [p[1] for p in places],
                self._ints_of(step), step.scalars, step.items,
                step.grain, step.scratch_bytes, step.together, order_of(self.host_plan, step),
                strides, self.layout.call_of(step), step.items // step.rounds if step.rounds > 1 else 0,
            )
            self._end(step, len(outputs) + len(step.inputs))

    def _callback(self, step: Step, op: Op) -> Callable[[], None]:
        """Return what a step that calls torch runs."""
        sides = (step.inputs, step.outputs)
        if is_collective(op) or op.target == WAIT:
            inputs, outputs = ([self._arena_view(held) for held in side] for side in sides)
            return bind_collective(op, inputs, outputs, self.flying, self.host_plan.awaited)
        return bind_generic(op, *([self._seen_by_torch(held) for held in side] for side in sides))

    def _seen_by_torch(self, held: HostTensor) -> Callable[[], torch.Tensor]:
        """Return what gives a value as a tensor, wherever it lies in a run."""
        if self.host_plan.allocations[held.buffer].place in (Place.INPUT, Place.OUTPUT):
            return partial(self.lent.view, *self._address(held, len(self.graph.inputs)), held)
        view = self._arena_view(held)
        return lambda: view

    def _ints_of(self, step: Step) -> Sequence[Any]:
        """Return the integers of a kernel call, with those among them that only the executor knows."""
        if step.together:
            assert isinstance(step.ints, ReplicaMeanInts)
            return step.ints._replace(replicas=self.replicas, apart=self.apart)
        if step.signals:
            assert self.exchange is not None
            assert isinstance(step.ints, SignalInts)
            return step.ints._replace(descriptor=self.exchange.descriptor)
        return step.ints

    def _end(self, step: Step, place: int) -> None:
        """Let the last step round its results; what that takes lies from argument ``place`` on."""
        for ending in step.endings:
            random = -1 if ending.rounding.random is None else place + 1
            self.engine.end_step(
                ROUND_BLOCKS, ints_of(ending), ending.place, place, random, ending.item_floats,
            )
            place += 1 if random < 0 else 2

    def _arena_view(self, held: HostTensor) -> torch.Tensor:
        """Return a torch tensor over part of the arena with a storage of its own: as_strided counts from there."""
        if held.num_elements == 0:
            return torch.empty(held.shape, dtype=TORCH_DTYPES[held.dtype])
        allocation = self.host_plan.allocations[held.buffer]
        memory = self.prepared if allocation.place is Place.PREPARED else self.arena
        view = typed_view(memory, allocation.offset_bytes, held)
        num_bytes = held.num_elements * held.dtype.host_bytes
        lasting = (ctypes.c_char * num_bytes).from_address(view.data_ptr())  # the memory outlives the plan's steps
        return torch.frombuffer(lasting, dtype=view.dtype).as_strided(held.shape, held.strides)

    def _random_rows(self) -> torch.Tensor | None:
        if self.host_plan.random_slots is None:
            return None
        streams = torch.tensor(self.host_plan.random_streams, dtype=torch.int64)
        count = len(streams)
        num_bytes = RANDOM_ROW_BYTES * count
        rows = aligned_bytes(num_bytes)[:num_bytes].view(torch.int64).unflatten(0, (-1, 4))
        rows[:, 2] = streams
        return rows

    def is_apart(self, tensor: Tensor) -> bool:
        """Whether each replica has a state for itself."""
        return self.host_plan.allocations[self.host_plan.states[tensor].buffer].place is Place.BANK

    def state_view(self, tensor: Tensor) -> torch.Tensor:
        """Return a torch view of a state tensor's memory; where each replica has its own, ``[replicas, ...]``."""
        held = self.host_plan.states[tensor]
        allocation = self.host_plan.allocations[held.buffer]
        if self.placed_states.number(held.buffer) is not None:
            return self.placed_states.view(held.buffer)
        if allocation.place is Place.STATE:
            return typed_view(self.state, self.state_begins[held.buffer], held)
        apart = self.host_plan.bank_bytes // held.dtype.host_bytes
        every = HostTensor(held.buffer, 0, (self.replicas, *held.shape), (apart, *held.strides), held.dtype)
        return typed_view(self.banks, allocation.offset_bytes, every)

    def place_states(self, tensors: Sequence[torch.Tensor]) -> list[bool]:
        """Let states that can lie anywhere lie in these tensors where they will do; return for each whether it does."""
        self.kept.clear()
        return self.placed_states.place(tensors)

    def seed(self, seed: int, replica: int = 0, *, stochastic_rounding: bool = True) -> None:
        """Set the key of all streams of random bits; the micro-batch counter starts at 0.

        Args:
            seed: Key.
            replica: The first replica that runs; streams that all replicas share keep that of replica 0.
            stochastic_rounding: Whether halves that the program rounds stochastically are; otherwise to nearest.
        """
        switch = 0 if stochastic_rounding else ROUNDS_TO_NEAREST
        for place, is_shared in enumerate(self.streams_are_shared):
            self.random_words[4 * place] = seed
            self.random_words[4 * place + 1] = switch if is_shared else switch + replica
            self.random_words[4 * place + 3] = 0

    def time_steps(self) -> None:
        """Time every step from the next run on; changes no value."""
        self.is_timed = True
        self.engine.time_steps()

    def step_times(self) -> tuple[StepTime, ...]:
        """Return how long each step has run since `time_steps`; nothing where none is timed."""
        return step_times(self.engine, self.host_plan.steps)

    def count_calls(self, calls: int) -> None:
        """Set the micro-batch counter of all streams."""
        for place in range(len(self.streams_are_shared)):
            self.random_words[4 * place + 3] = calls

    def begin(self) -> None:
        """Say that a run is about to begin: `has_changed` is asked about that one from here on."""
        self.engine.has_ended = False

    def run(
        self, micro_batches: int, iterations: int, threads: int, *, borrow: bool = False, is_prepared: bool = False,
        is_restored: bool = False,
    ) -> None:
        """Run the plan over what is bound, on threads of the engine or, with ``borrow``, of torch.

        Args:
            micro_batches: Times that the body runs in an iteration.
            iterations: Times that all of it runs.
            threads: Host threads.
            borrow: Whether to use the threads of torch.
            is_prepared: Whether the steps before the first micro-batch have run, and what they read is unchanged.
            is_restored: Whether states are to be as before where the run stops halfway: there is no other copy of them.

        Raises:
            AssertionFailedError: An assertion of the model does not hold.
            ExecutionError: A kernel refused a value, such as an index out of range.
        """
        if self.observation.counts:
            self._tallies().zero_()
            self.has_run = True
        if is_restored:
            with self._kept(iterations, threads):
                self._run(micro_batches, iterations, threads, borrow, is_prepared)
            return
        if self.shared is None:
            self._run(micro_batches, iterations, threads, borrow, is_prepared)
            return
        memory = self.shared.borrow(self.host_plan.arena_bytes)
        try:
            self.engine.bind(ARENA, memory.data_ptr())
            self._run(micro_batches, iterations, threads, borrow, is_prepared)
        finally:
            self.shared.give_back(memory)

    @property
    def is_repeatable(self) -> bool:
        """Whether all that a run takes is what `call` does: the engine, with fresh memory for all results."""
        calls_torch = any(step.kernel is None for step in self.host_plan.steps)
        others = (self.order, self.carrier, self.exchange)
        return (
            self.are_fresh and not self.observation.is_on and not calls_torch and self.lanes.count == self.replicas == 1
            and not self.host_plan.num_fold and not self.host_plan.num_reset
            and all(other is None for other in others)
        )

    def call(
        self, inputs: Sequence[tuple[int, torch.dtype, int, tuple[int, ...] | None]],
        results: Sequence[tuple[int | None, int | None]], threads: int, lock: Any, memory: OutputMemory,
        frozen: Sequence[tuple[int | None, torch.Tensor | None]], packing: Packing | None = None,
        block: Block | None = None, draws: Draws | None = None,
    ) -> Call:
        """Return a call of a repeatable plan, for one micro-batch, that finds nothing anew that stays.

        Args:
            inputs: Place among the arguments of a call, element type, number of the buffer, and strides where it is not
                row-major, of each that it reads.
            results: What the call returns: by number an output, or an argument; None of both for None.
            threads: Host threads.
            lock: Held while what is bound is in use.
            memory: Gives memory to results.
            frozen: Place among the arguments of each tensor that the steps before the first micro-batch read, or the
                tensor.
            packing: Of the plan's results, where some are no tensors of their own; None where all are.
            block: An argument that holds other inputs; None where there is none.
            draws: Of a plan with random bits.
        """
        plan, begin = self.host_plan, self.host_plan.num_prologue
        end = begin + plan.num_body
        prologue = (begin if frozen else 0, begin)
        return Call(
            self.engine, inputs, self.rooms, FIRST_EXTERNAL + len(self.graph.inputs), results,
            (prologue, (begin, end), (end, len(plan.steps))), threads, torch,
            memory.empty_of(self.rooms if packing is None else packing.made), lock,
            self.shared, ARENA, RESTING, frozen, self.prepared_from,
            lambda trap: explained(trap, plan, self.graph, 1, 1),
            None if packing is None else packing.offsets,
            None if block is None else (
                block.place, block.num_bytes,
                [(FIRST_EXTERNAL + number, offset) for number, (offset, _) in block.rooms.items()],
            ),
            draws,
        )

    def _run(self, micro_batches: int, iterations: int, threads: int, borrow: bool, is_prepared: bool) -> None:
        plan = self.host_plan
        reset, begin = plan.num_prologue - plan.num_reset, plan.num_prologue
        end = begin + plan.num_body
        fold = end + plan.num_fold
        rows = self.random_rows
        counters = (0, 0) if rows is None else (rows.data_ptr(), len(rows))
        if self.exchange is not None:
            self.signals.zero_()  # a run that failed may have left some
        began = time.perf_counter() if self.is_timed else 0.0
        try:
            with self._around(iterations):
                self.engine.run(
                    (reset if is_prepared else 0, reset), (begin, end), (fold, len(plan.steps)), micro_batches,
                    iterations, threads, *counters, borrow=borrow, replicas=self.replicas,
                    beside=(self.lanes.micro_batches, self.lanes.replicas) if self.order is None else (1, 1),
                    counter_buffer=RANDOM, order=None if self.order is None else self.order.rows,
                    reset=(reset, begin), fold=(end, fold),
                )
            if self.is_timed:
                self.seconds += time.perf_counter() - began
        except KernelTrap as trap:
            raise explained(trap, plan, self.graph, micro_batches, self.replicas) from None

    def _around(self, iterations: int) -> contextlib.AbstractContextManager[None]:
        """Return what goes on around a run: the exchange with other processes, and ranges for a profiler."""
        if self.exchange is None and not is_recording():
            return _NOTHING
        return self._exchanged_and_recorded(iterations)

    @contextlib.contextmanager
    def _exchanged_and_recorded(self, iterations: int) -> Iterator[None]:
        exchanging = _NOTHING if self.exchange is None else self.exchange.running(iterations)
        with exchanging, ranges(self.engine, self.host_plan.steps, self.range_names, self.graph.name):
            yield

    def _kept(self, iterations: int, threads: int) -> contextlib.AbstractContextManager[None]:
        """Return what brings states back that a run writes before it can stop."""
        several = self._keeps_all(iterations)
        if several not in self.kept:
            found = written_before_the_end(self.graph, 2 if several else 1)
            views = [self.state_view(state) for state in found if state in self.host_plan.states]
            self.kept[several] = KeptStates(views) if views else None
        kept = self.kept[several]
        return _NOTHING if kept is None else kept.held(threads, lambda: self._has_stepped(iterations))

    def _keeps_all(self, iterations: int) -> bool:
        """Whether states are kept that an update writes: another iteration may follow, or an update may overflow."""
        return iterations > 1 or self.observation.traps

    def _has_stepped(self, iterations: int) -> bool:
        """Whether a run that was interrupted has made the only update: nobody has kept what was there before."""
        return self.engine.has_ended and not self._keeps_all(iterations)

    def has_changed(self, iterations: int) -> bool:
        """Whether states that a run was to restore are those after it: an exception came behind it, if at all."""
        kept = self.kept.get(self._keeps_all(iterations))
        return self.engine.has_ended and not (kept and kept.are_back)

    def _tallies(self) -> torch.Tensor:
        """Return the counts of magnitudes, a row for each result that is counted."""
        rows = self.observation.rows
        if rows is None:
            return torch.zeros(0, TALLY_WORDS, dtype=torch.int64)
        shape = (len(self.observation.counted), TALLY_WORDS)
        held = HostTensor(rows, 0, shape, (TALLY_WORDS, 1), DType.LONG)
        return typed_view(self.state, self.state_begins[rows], held)

    def statistics(self) -> tuple[TensorStatistics, ...]:
        """Return the magnitudes of all results in the last run, in the order of the ops."""
        return tuple(
            TensorStatistics(
                tensor.name, op.kind, op.leg.name.lower(), tensor.dtype.text, str(op.source), tuple(row[:256]),
                struct.unpack("<f", struct.pack("<I", row[256]))[0], row[257],
                "" if op.placement is None else str(op.placement),
            )
            for (op, tensor), row in zip(self.observation.counted, self._tallies().tolist(), strict=True)
        )
