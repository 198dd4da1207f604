"""Cuts a placed graph into the parts of several processes, with a transfer for every value that one has from another.

Every process makes the same cut of the same graph. All transfers have one order, that of the ops that make the values:
a process that waits for a value waits for something that its maker does earlier in this order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchipu.host.uses import operands_read
from torchipu.ir.graph import Graph, Op, Tensor, walk_ops
from torchipu.ir.types import Leg, Role
from torchipu.optable.spec import spec_of
from torchipu.optable.transfer import RECEIVE, SEND, Moment, transfer

GIVEN = (Role.INPUT, Role.CONSTANT, Role.HYPERPARAMETER)  # what every process is given
PRODUCTS = (
    "mm", "addmm", "bmm", "baddbmm", "grouped_mm", "grouped_mm_backward", "attention", "attention_backward",
    "convolution", "convolution_backward", "fp8_matmul", "fp8_convolution", "fp8_convolution_backward", "recurrence",
    "recurrence_backward",
)
ELEMENTS_PER_PRODUCT = 8.0
"""Multiplications of a product that take as long as an element of other ops. A guess, which shifts an order only."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that goes from one process to another.

    Attributes:
        number: Its number among all transfers.
        tensor: The value.
        source: The process that has it.
        target: The process that reads it.
        moment: When it goes.
        message: Number of the message that it is part of: what goes the same way at the same time goes as one.
    """

    number: int
    tensor: Tensor
    source: int
    target: int
    moment: Moment
    message: int

    @property
    def num_bytes(self) -> int:
        """Size of the value on the host."""
        return self.tensor.num_elements * self.tensor.dtype.host_bytes


@dataclass(slots=True)
class Segment:
    """What a process computes of a body between two waits for others.

    Attributes:
        weight: About how long it takes, in a unit of its own.
        receives: Transfers that it begins with.
        sends: Transfers of what it makes.
    """

    weight: float = 0.0
    receives: list[Transfer] = field(default_factory=list)
    sends: list[Transfer] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Part:
    """What one process has of a graph.

    Attributes:
        graph: Its ops, with a send and a receive for what goes between it and others.
        transfers: Those that it takes part in, in their order, by when they go.
        segments: Of the body.
        outputs: Which of the whole graph's outputs its own outputs are.
    """

    graph: Graph
    transfers: Mapping[Moment, tuple[Transfer, ...]]
    segments: tuple[Segment, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph in parts.

    Attributes:
        parts: That of each process.
        owners: The process that has each state.
        output_owners: The process that has each output of the graph.
        transfers: All of them, by number.
    """

    parts: tuple[Part, ...]
    owners: Mapping[Tensor, int]
    output_owners: tuple[int, ...]
    transfers: tuple[Transfer, ...]


def cut(graph: Graph, processes: int, process_of_ipu: Callable[[int], int], *, reads_shapes: bool = False) -> Cut:
    """Cut a graph.

    Args:
        graph: Placed, as the host runs it: nothing is recomputed in it, and what replicas add up has an accumulator.
        processes: How many there are.
        process_of_ipu: The process of each IPU.
        reads_shapes: Whether ops look at operands of which they need the shape alone.
    """
    knife = _Knife(graph, process_of_ipu, reads_shapes)
    transfers = knife.transfers()
    parts = tuple(knife.part(process, transfers) for process in range(processes))
    owners = {tensor: knife.owner[tensor] for tensor in graph.inputs if tensor.role not in GIVEN}
    output_owners = tuple(knife.owner[tensor] for tensor in graph.outputs)
    return Cut(parts, owners, output_owners, tuple(one for _, one in transfers))


class _Knife:
    """Knows where everything of a graph is.

    Args:
        graph: The graph.
        process_of_ipu: The process of each IPU.
        reads_shapes: Whether operands of which only the shape matters are values too.
    """

    def __init__(self, graph: Graph, process_of_ipu: Callable[[int], int], reads_shapes: bool) -> None:
        self.graph = graph
        self.reads_shapes = reads_shapes
        self.number = {op: number for number, op in enumerate(graph.ops)}
        self.makers = {tensor: op for op in graph.ops for tensor in op.outputs}
        self.values = dict(graph.updates)
        self.process: dict[Op, int] = {}
        for op in graph.ops:
            self.process[op] = self._home(op, process_of_ipu)
        self.owner = {tensor: self.process[op] for tensor, op in self.makers.items()}
        self._own_inputs()
        self.before_update = min((n for op, n in self.number.items() if op.leg is Leg.UPDATE), default=0) - 1
        self.free = self._free_values()
        self.copies: dict[Op, set[int]] = {}  # which other processes compute an op once more

    def _home(self, op: Op, process_of_ipu: Callable[[int], int]) -> int:
        """Return the process of an op; one of ours without a place is with what makes its operand."""
        if op.placement is not None:
            return process_of_ipu(op.placement.ipu)
        makers = [self.makers[tensor] for tensor in op.inputs if tensor in self.makers]
        return next((self.process[maker] for maker in makers if maker in self.process), 0)

    def _own_inputs(self) -> None:
        """Find the owners of the inputs: a state is where its next value is made, else where it is first read."""
        first: dict[Tensor, int] = {}
        for op in self.graph.ops:
            for tensor in op.inputs:
                first.setdefault(tensor, self.process[op])
        for tensor in self.graph.inputs:
            value, passed = tensor, {tensor}
            while value not in self.makers and self.values.get(value, value) not in passed:
                value = self.values[value]
                passed.add(value)
            home = self.owner[value] if value in self.makers else first.get(tensor, 0)
            self.owner[tensor] = first.get(tensor, 0) if tensor.role in GIVEN else home

    def _free_values(self) -> set[Tensor]:
        """Return the values that depend on nothing that changes from place to place, such as masks."""
        free = {tensor for tensor in self.graph.inputs if tensor.role in (Role.CONSTANT, Role.HYPERPARAMETER)}
        for op in self.graph.ops:
            spec = spec_of(op)
            is_plain = spec is not None and not (spec.is_random or spec.has_effect or op.bodies)
            if is_plain and op.leg is not Leg.UPDATE and all(tensor in free for tensor in op.inputs):
                free |= set(op.outputs)
        return free

    def _is_given(self, tensor: Tensor) -> bool:
        return tensor.role in GIVEN and tensor not in self.makers

    def read(self, op: Op) -> tuple[Tensor, ...]:
        """Return the operands of an op whose values it needs."""
        return op.inputs if self.reads_shapes else operands_read(op)

    # ------------------------------------------------------------------ transfers
    def transfers(self) -> list[tuple[int, Transfer]]:
        """Return what goes between processes, in the order in which it goes, each with the op after which it does.

        -1 stands for the place before all ops.
        """
        found: dict[tuple[Tensor, int, Moment], int] = {}
        for tensor, target, reader in self._crossings():
            moment, place = self._moment(tensor, reader)
            has_it = (tensor, target, Moment.PROLOGUE) in found or (
                (tensor, target, Moment.BODY) in found and tensor in self.makers
            )
            if not (moment is Moment.UPDATE and has_it):
                found.setdefault((tensor, target, moment), place)
        made = [*self.graph.inputs, *(tensor for op in self.graph.ops for tensor in op.outputs)]
        order = {tensor: number for number, tensor in enumerate(made)}
        moments = tuple(Moment)
        needs = sorted(
            (place, moments.index(moment), self.owner[tensor], target, order[tensor])
            for (tensor, target, moment), place in found.items()
        )
        messages: dict[tuple[int, ...], int] = {}
        return [
            (place, Transfer(
                number, made[which], source, target, moments[moment],
                messages.setdefault((place, moment, source, target), len(messages)),
            )) for number, (place, moment, source, target, which) in enumerate(needs)
        ]

    def _crossings(self) -> Iterator[tuple[Tensor, int, Op]]:
        """Yield what a process reads of another, the process and the op that reads it; the body's before the update's.

        Takes note of what is computed once more instead.
        """
        late: list[tuple[Tensor, int, Op]] = []
        for op in self.graph.ops:
            target = self.process[op]
            for tensor in self.read(op):
                if self.owner[tensor] == target or self._is_given(tensor):
                    continue
                if tensor in self.free:
                    self._copy(tensor, target)
                elif op.leg is Leg.UPDATE:
                    late.append((tensor, target, op))
                else:
                    yield tensor, target, op
        yield from late

    def _copy(self, tensor: Tensor, target: int) -> None:
        """Let another process compute a value, and what it is made of, once more."""
        pending = [tensor]
        while pending:
            maker = self.makers.get(pending.pop())
            if maker is not None and self.process[maker] != target and target not in self.copies.get(maker, ()):
                self.copies.setdefault(maker, set()).add(target)
                pending += maker.inputs

    def _moment(self, tensor: Tensor, reader: Op) -> tuple[Moment, int]:
        """Return when a value goes to its reader, and after which op."""
        is_late = reader.leg is Leg.UPDATE
        if tensor not in self.makers:
            if is_late:
                return Moment.UPDATE, self.before_update
            return (Moment.BODY if self._changes_in_body(tensor) else Moment.PROLOGUE), -1
        place = self.number[self.makers[tensor]]
        if self.makers[tensor].leg is Leg.UPDATE:
            # As late as can be: what the same op reads goes together, as the squares of all gradients.
            return Moment.UPDATE, max(place, self.number[reader] - 1)
        return (Moment.UPDATE, max(place, self.before_update)) if is_late else (Moment.BODY, place)

    def _changes_in_body(self, state: Tensor) -> bool:
        value = self.values.get(state)
        return value is not None and (value not in self.makers or self.makers[value].leg is not Leg.UPDATE)

    # ------------------------------------------------------------------ parts
    def part(self, process: int, transfers: Sequence[tuple[int, Transfer]]) -> Part:
        """Return what one process has."""
        own = [(place, one) for place, one in transfers if process in (one.source, one.target)]
        due: dict[int, list[Transfer]] = {}
        for place, one in own:
            due.setdefault(place, []).append(one)
        ops: list[Op] = []
        segments = [Segment()]
        for number, op in [(-1, None), *enumerate(self.graph.ops)]:
            if op is not None and (self.process[op] == process or process in self.copies.get(op, ())):
                ops.append(op)
                segments[-1].weight += 0.0 if op.leg is Leg.UPDATE else weight(op)
            for one in due.get(number, ()):
                ops.append(transfer(SEND if one.source == process else RECEIVE, one.tensor, one.number, one.moment))
                if one.moment is Moment.BODY:
                    _enter(segments, one, one.target == process)
        by_moment = {moment: tuple(one for _, one in own if one.moment is moment) for moment in Moment}
        return Part(self._graph_of(process, ops), by_moment, tuple(segments), self._outputs_of(process))

    def _outputs_of(self, process: int) -> tuple[int, ...]:
        return tuple(place for place, t in enumerate(self.graph.outputs) if self.owner[t] == process)

    def _graph_of(self, process: int, ops: Sequence[Op]) -> Graph:
        """Return the graph of a process: its states, and of what is given what its ops read."""
        outputs = tuple(self.graph.outputs[place] for place in self._outputs_of(process))
        updates = tuple((state, value) for state, value in self.graph.updates if self.owner[state] == process)
        read = {tensor for op in ops for tensor in op.inputs} | set(outputs) | {value for _, value in updates}
        inputs = tuple(
            tensor for tensor in self.graph.inputs
            if (tensor in read if self._is_given(tensor) else self.owner[tensor] == process)
        )
        return replace(self.graph, inputs=inputs, outputs=outputs, ops=tuple(ops), updates=updates)


def _enter(segments: list[Segment], one: Transfer, is_received: bool) -> None:
    """Note a transfer of the body; the first that waits for another process begins a segment."""
    if not is_received:
        segments[-1].sends.append(one)
        return
    if segments[-1].weight or segments[-1].sends:
        segments.append(Segment())
    segments[-1].receives.append(one)


def weight(op: Op) -> float:
    """Return about how long an op takes on the host, in elements that it touches; products take longer."""
    sizes = sorted((tensor.num_elements for tensor in (*op.inputs, *op.outputs)), reverse=True)
    if op.bodies:
        return sum(map(weight, walk_ops([member for body in op.bodies for member in body.ops])))
    if op.kind in PRODUCTS and len(sizes) >= 3:
        return max(1.0, math.sqrt(math.prod(sizes[:3])) / ELEMENTS_PER_PRODUCT)
    return max(1.0, float(sum(sizes)))
