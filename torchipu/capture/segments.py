"""Cuts a captured step with updates of its own into segments, each of which is a program.

Updates belong behind the micro-batches of a program: a segment holds ops, then reductions of gradients over replicas,
then updates. Each op is in the first segment that has what it reads, so that independent updates share one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchipu.capture.captured import Captured
from torchipu.capture.manual_updates import KEEP, REDUCE, STEP
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Leg, Role

VIEWS = frozenset({
    "aten.t.default", "aten.view.default", "aten._unsafe_view.default", "aten.transpose.int", "aten.permute.default",
    "aten.unsqueeze.default", "aten.squeeze.dim", "aten.expand.default",
})
"""What is taken again in a later segment, rather than handed over."""
CLONE = "aten.clone.default"


@dataclass(slots=True)
class Update:
    """One call of ``optimizer.step()``.

    Attributes:
        step: Its number, in the order of the calls.
        optimiser: Number of the optimiser.
        gradients: What each parameter is updated with, by name: tensors of the update leg.
    """

    step: int
    optimiser: int
    gradients: dict[str, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Segment:
    """One program of a step.

    Attributes:
        graph: Without the updates of optimisers.
        arguments: Its inputs of each micro-batch, in order: those of the step, and what earlier segments computed.
        parameters: Weights that it reads or updates, by name.
        buffers: Buffers, by name.
        cells: Gradients that stay on the host between segments: read, or written, here.
        updates: What optimisers do at its end.
    """

    graph: Graph
    arguments: tuple[Tensor, ...]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    cells: tuple[Tensor, ...]
    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Segments:
    """A step as programs.

    Attributes:
        parts: The segments, in order.
        arguments: Inputs of the step.
        results: Where each result of the step comes from: a segment, and the place among its outputs.
        gradients: What is left in ``grad`` of each parameter at the end: a cell, a place as for ``results``, or None
            where it is what it was.
        held: Cell of each gradient that was there at the beginning and is read, by parameter name.
        sources: For each segment, where its arguments come from: the number of an input, or a place as above.
    """

    parts: tuple[Segment, ...]
    results: tuple[tuple[int, int], ...]
    gradients: Mapping[str, Tensor | tuple[int, int] | None]
    held: Mapping[str, Tensor]
    sources: tuple[tuple[int | tuple[int, int], ...], ...]


def cut(capture: Captured, num_results: int, held: Mapping[str, Tensor], replicas: int) -> Segments:
    """Cut a step.

    Args:
        capture: The step; behind its results are marks of what is there at the end.
        num_results: How many results it has.
        held: Inputs that are gradients from before, by parameter name; the last of the arguments.
        replicas: Of all processes.
    """
    return _Cutter(capture, num_results, held, replicas).segments()


@dataclass(slots=True)
class _Value:
    """Where a tensor is made.

    Attributes:
        level: Number of the segment.
        is_late: Whether it is made behind the micro-batches, so that only later segments' ops may read it.
        state: The tensor that has it in later segments, for a late one.
        until: Number of the last segment in which the state still has it.
    """

    level: int
    is_late: bool = False
    state: Tensor | None = None
    until: float = math.inf

    @property
    def first(self) -> int:
        """The first segment whose ops may read it."""
        return self.level + self.is_late


class _Cutter:
    """State of one cut."""

    def __init__(self, capture: Captured, num_results: int, held: Mapping[str, Tensor], replicas: int) -> None:
        self.capture, self.replicas = capture, replicas
        graph = capture.graph
        producers = {tensor: op for op in graph.ops for tensor in op.outputs}
        self.results = graph.outputs[:num_results]
        self.keeps = [_mark(producers, tensor) for tensor in graph.outputs[num_results:]]
        behind = set(graph.outputs[num_results:]) | {op.outputs[0] for op in self.keeps}
        self.ops = [op for op in graph.ops if not behind & set(op.outputs)]
        self.producers = {tensor: op for op in self.ops for tensor in op.outputs}
        self.held = {name: replace(tensor, role=Role.BUFFER) for name, tensor in held.items()}
        self.alias: dict[Tensor, Tensor] = {tensor: self.held[name] for name, tensor in held.items()}
        self.values: dict[Tensor, _Value] = {}
        self.micro: list[list[Op]] = []
        self.late: list[list[Op]] = []
        self.writes: list[list[tuple[Tensor, Tensor]]] = []
        self.updates: list[list[Update]] = []
        self.outputs: list[dict[Tensor, None]] = []
        self.weights = {name: _Value(-1, True, tensor) for name, tensor in capture.parameters.items()}
        self.last_step: dict[int, int] = {}
        self.crossings: dict[Tensor, Tensor] = {}
        self.copies: dict[tuple[Tensor, int], Tensor] = {}
        self.inputs = frozenset(graph.inputs)
        self.cells = set(self.held.values())
        self.used_cells: set[Tensor] = set()
        self.left: dict[str, Tensor] = {}
        self.count = 0

    # ------------------------------------------------------------------ levels
    def segments(self) -> Segments:
        """Return the segments."""
        for tensor in self.capture.graph.inputs:
            self.values[tensor] = _Value(0)
        for name, tensor in self.capture.parameters.items():
            self.values[tensor] = self.weights[name]
        for tensor in self.capture.buffers.values():
            self.values[tensor] = _Value(-1, True, tensor)
        for cell in self.held.values():
            self.values[cell] = _Value(-1, True, cell)
        groups: dict[object, list[Op]] = {}
        for op in self.ops:
            if op.target == STEP:
                groups.setdefault(op.attrs["step"], []).append(op)
        for op in self.ops:
            if op.target == REDUCE:
                self._reduce(op)
            elif op.target == STEP:
                if groups[op.attrs["step"]][0] is op:
                    self._step(groups[op.attrs["step"]])
            else:
                level = max((self._of(tensor).first for tensor in op.inputs), default=0)
                self._enter(op, max(0, level))
        self._end()
        return self._assembled()

    def _of(self, tensor: Tensor) -> _Value:
        return self.values[self._real(tensor)]

    def _real(self, tensor: Tensor) -> Tensor:
        while tensor in self.alias:
            tensor = self.alias[tensor]
        return tensor

    def _room(self, level: int) -> None:
        while len(self.micro) <= level:
            for held in (self.micro, self.late, self.writes, self.updates):
                held.append([])
            self.outputs.append({})

    def _enter(self, op: Op, level: int) -> None:
        self._room(level)
        self.micro[level].append(op)
        for tensor in op.outputs:
            self.values[tensor] = _Value(level)

    def _made(self, like: Tensor, suffix: str, role: Role | None = None) -> Tensor:
        self.count += 1
        return replace(like, name=f"{like.name}.{suffix}{self.count}", role=like.role if role is None else role)

    # ------------------------------------------------------------------ gradients
    def _reduce(self, op: Op) -> None:
        gradient, held, total = op.operand("gradient"), op.operand("held"), op.outputs[0]
        assert gradient is not None
        level = self._of(gradient).first
        if self.replicas == 1:
            if held is None:
                self.alias[total] = gradient
            else:
                self._enter(_sum(op, held, gradient, total), max(level, self._of(held).first, 0))
            return
        if held is not None and not self._of(held).is_late:
            level = max(level, self._of(held).first)
            share = self._share(held, level)
            gradient, held = self._made(gradient, "with"), None
            self._enter(_sum(op, share, op.inputs[0], gradient), level)
        if held is not None:
            level = max(level, self._of(held).level)
        cell = self._made(total, "cell", Role.BUFFER)
        self.cells.add(cell)
        self._room(level)
        result = self._sum_of_replicas(gradient, level)
        if held is not None:
            joined = self._made(total, "sum", Role.ACCUMULATOR)
            self.late[level].append(replace(_sum(op, held, result, joined), leg=Leg.UPDATE))
            result = joined
        self.alias[total] = result
        self.values[result] = _Value(level, True, cell)
        self.values[cell] = self.values[result]
        self.writes[level].append((cell, result))

    def _sum_of_replicas(self, value: Tensor, level: int) -> Tensor:
        total = self._made(value, "reduced")
        self.late[level].append(Op(
            "all_reduce", (value,), (total,), {"replicas": self.replicas}, target="ipu.all_reduce.default",
            operands=("gradient",), leg=Leg.UPDATE,
        ))
        return total

    def _share(self, value: Tensor, level: int) -> Tensor:
        """Return what replicas that have the same value add up to it."""
        share = self._made(value, "share")
        self._enter(Op(
            "mul", (value,), (share,), {"other": 1.0 / self.replicas}, target="aten.mul.Tensor", operands=("self",),
            leg=Leg.BACKWARD,
        ), level)
        return share

    # ------------------------------------------------------------------ updates
    def _step(self, ops: Sequence[Op]) -> None:
        """Enter one call of ``optimizer.step()``, whose updates are all in one segment."""
        optimiser = int(str(ops[0].attrs["optimiser"]))
        level = self.last_step.get(optimiser, -1) + 1
        for op in ops:
            name, gradient = str(op.attrs["name"]), self._of(op.inputs[1])
            self._write_back(name, op.inputs[0])
            # A gradient that a cell holds is read by an update as it is by ops: in the segment of its own, directly.
            level = max(level, gradient.level, self.weights[name].level + 1)
        level = max(level, 0)
        self._room(level)
        self.last_step[optimiser] = level
        update = Update(int(str(ops[0].attrs["step"])), optimiser)
        for op in ops:
            name = str(op.attrs["name"])
            update.gradients[name] = self._for_update(op.inputs[1], level)
            self._new_weight(name, op.outputs[0], level)
        self.updates[level].append(update)

    def _for_update(self, gradient: Tensor, level: int) -> Tensor:
        """Return a gradient as an update reads it."""
        if self._of(gradient).is_late or self.replicas == 1:
            return gradient
        return self._sum_of_replicas(self._share(gradient, level), level)

    def _new_weight(self, name: str, tensor: Tensor, level: int) -> None:
        """Note that a weight changes at the end of a segment."""
        before = self.weights[name]
        before.until = level
        state = before.state
        self.weights[name] = self.values[tensor] = _Value(level, True, state)

    def _write_back(self, name: str, tensor: Tensor) -> None:
        """Let a weight be what ops have made of it, if they have."""
        value = self._of(tensor)
        if value is self.weights[name]:
            return
        level = max(value.first, self.weights[name].level + 1, 0)
        self._room(level)
        state = self.weights[name].state
        assert state is not None
        written = tensor
        if value.level != level or self.replicas > 1:
            written = self._made(tensor, "written")
            target = Op("clone", (tensor,), (written,), target=CLONE, operands=("self",))
            self._enter(target, level)
        if self.replicas > 1:
            written = self._sum_of_replicas(self._share(written, level), level)
        self.writes[level].append((state, written))
        self._new_weight(name, self._made(tensor, "weight"), level)

    # ------------------------------------------------------------------ the end
    def _end(self) -> None:
        """Enter what is there when the step has ended."""
        for op in self.keeps:
            name, tensor = str(op.attrs["name"]), self._real(op.inputs[0])
            if op.attrs["kind"] == "gradient":
                if tensor in self.inputs and not self.values[tensor].is_late:
                    tensor = self._made(tensor, "left", Role.GRADIENT)
                    self._enter(Op("clone", op.inputs, (tensor,), target=CLONE, operands=("self",)), 0)
                self.left[name] = tensor
            else:
                self._write_back(name, op.inputs[0])
        states = {tensor: name for name, tensor in self.capture.parameters.items()}
        for state, value in self.capture.graph.updates:
            if state in states and self.weights[states[state]].level >= 0:
                continue  # written into before a step: what was written is what the step read
            if state in states:
                self._write_back(states[state], value)
                continue
            level = self._of(value).first
            self._room(level)
            written = self._real(value)
            if self.values[written].level != level:
                written = self._made(value, "written")
                self._enter(Op("clone", (value,), (written,), target=CLONE, operands=("self",)), level)
            self.values[state].until = level
            self.writes[level].append((state, written))

    # ------------------------------------------------------------------ reading across segments
    def _read(self, tensor: Tensor, level: int, made: list[Op]) -> Tensor:
        """Return what has a value in a segment.

        Args:
            tensor: The value.
            level: The segment.
            made: Receives the ops that make it anew.
        """
        tensor = self._real(tensor)
        value = self.values.get(tensor)
        if value is None:  # within the leg of updates
            return tensor
        if value.is_late and value.level < level:
            assert value.state is not None
            if level <= value.until:
                self.used_cells.add(value.state)
                return value.state
            return self._cross(self._copied(tensor, value), level)
        if value.level == level or tensor in self.inputs:
            return tensor
        op = self.producers.get(tensor)
        if op is not None and op.target in VIEWS and len(op.inputs) == 1:
            known = self.copies.get((tensor, level))
            if known is None:
                again = self._made(tensor, "again")
                known = self.copies[tensor, level] = again
                made.append(replace(op, inputs=(self._read(op.inputs[0], level, made),), outputs=(again,)))
            return known
        return self._cross(tensor, level)

    def _copied(self, tensor: Tensor, value: _Value) -> Tensor:
        """Return a copy of a state, made before it changes."""
        known = self.copies.get((tensor, -1))
        if known is None:
            assert value.state is not None
            known = self.copies[tensor, -1] = self._made(value.state, "before", Role.ACTIVATION)
            first = max(value.first, 0)
            self.micro[first].insert(0, Op("clone", (value.state,), (known,), target=CLONE, operands=("self",)))
            self.values[known] = _Value(first)
        return known

    def _cross(self, tensor: Tensor, level: int) -> Tensor:
        """Return the input by which a segment is given what an earlier one has computed."""
        self.outputs[self.values[tensor].level].setdefault(tensor)
        if tensor not in self.crossings:
            self.crossings[tensor] = self._made(tensor, "given", Role.INPUT)
        return self.crossings[tensor]

    # ------------------------------------------------------------------ results
    def _assembled(self) -> Segments:
        for level in range(len(self.micro)):
            self._translate(level)
        final = {name: self._left(name, tensor) for name, tensor in self.left.items()}
        results = [self._place(tensor) for tensor in self.results]
        segments = [self._segment(level) for level in range(len(self.micro))]
        places = {
            tensor: (level, place)
            for level, segment in enumerate(segments) for place, tensor in enumerate(segment.graph.outputs)
        }
        inputs = {tensor: n for n, tensor in enumerate(t for t in self.capture.arguments if t is not None)}
        origin = {given: made for made, given in self.crossings.items()}
        sources = tuple(
            tuple(places[origin[t]] if t in origin else inputs[t] for t in segment.arguments) for segment in segments
        )
        return Segments(
            tuple(segments), tuple(places[tensor] for tensor in results),
            {name: places.get(left, left) if left is not None else None for name, left in final.items()},
            {name: cell for name, cell in self.held.items() if any(cell in s.cells for s in segments)}, sources,
        )

    def _left(self, name: str, tensor: Tensor) -> Tensor | None:
        """Return a cell or an output that has what is left in a gradient; None where nothing has changed."""
        if tensor is self.held.get(name):
            return None
        value = self.values[tensor]
        if value.is_late:
            assert value.state is not None
            self.used_cells.add(value.state)
            return value.state
        return self._place(tensor)

    def _place(self, tensor: Tensor) -> Tensor:
        self.outputs[self.values[tensor].level].setdefault(tensor)
        return tensor

    def _translate(self, level: int) -> None:
        """Let the ops of a segment read what it has."""
        ops: list[Op] = []

        def reading(op: Op) -> Op:
            return replace(op, inputs=tuple(self._read(tensor, level, ops) for tensor in op.inputs))

        backward: set[Tensor] = set()
        for op in self.micro[level]:
            op = reading(op)
            if op.leg is Leg.BACKWARD or not backward.isdisjoint(op.inputs):
                op = replace(op, leg=Leg.BACKWARD)
                backward.update(op.outputs)
            ops.append(op)
        late = [reading(op) for op in self.late[level]]
        for update in self.updates[level]:
            update.gradients = {name: self._read(t, level, ops) for name, t in update.gradients.items()}
        self.micro[level], self.late[level] = ops, late

    def _segment(self, level: int) -> Segment:
        updates = self.updates[level]
        writes = [
            (state, value) for state, value in self.writes[level]
            if state not in self.cells or state in self.used_cells
        ]
        ops = (*self.micro[level], *self.late[level])
        made = {tensor for op in ops for tensor in op.outputs}
        outputs = tuple(self.outputs[level])
        read = dict.fromkeys(tensor for op in ops for tensor in op.inputs)
        read |= dict.fromkeys(tensor for update in updates for tensor in update.gradients.values())
        read |= dict.fromkeys(state for state, _ in writes)
        read = dict.fromkeys(tensor for tensor in read if tensor not in made)
        changed = {name for update in updates for name in update.gradients}
        capture = self.capture
        parameters = {n: t for n, t in capture.parameters.items() if t in read or n in changed}
        buffers = {name: tensor for name, tensor in capture.buffers.items() if tensor in read}
        given = {*self.crossings.values(), *(t for t in capture.arguments if t is not None)}
        arguments = tuple(tensor for tensor in read if tensor in given)
        cells = tuple(tensor for tensor in read if tensor in self.cells)
        constants = (tensor for tensor in capture.constants if tensor in read)
        inputs = (*parameters.values(), *buffers.values(), *arguments, *constants, *cells)
        graph = Graph(f"{capture.graph.name}_{level}", inputs, outputs, ops, tuple(writes))
        return Segment(graph, arguments, parameters, buffers, cells, tuple(updates))


def _mark(producers: Mapping[Tensor, Op], tensor: Tensor) -> Op:
    """Return the mark behind one of the last outputs."""
    op = producers[tensor]
    while op.target != KEEP:
        op = producers[op.inputs[0]]
    return op


def _sum(like: Op, one: Tensor, other: Tensor, total: Tensor) -> Op:
    return replace(
        like, kind="add", inputs=(one, other), outputs=(total,), attrs={"alpha": 1}, target="aten.add.Tensor",
        operands=("self", "other"), leg=Leg.BACKWARD,
    )
