"""Writes layers into a graph that are like those that were captured.

Of a run of units, each a layer or a few, the graph has the first two and the last two. The second and the third of
these have to be alike: the same ops, which read the same of their own unit, of the one before, of the one behind and of
what is common. Then the ones between are further copies of the second. The first and the last may differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from torchipu.capture.captured import Captured
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Leg, Role, Source
from torchipu.optable.marks import CHECKPOINT_REGION

FIRST, LAST = 2, 2
"""Units of a run that are captured, at its beginning and at its end."""
TEMPLATE, NEXT = 1, 2
"""Which of them the others are copies of, and which has to be like it."""
REGIONS = 1_000_000
"""More regions under torch.utils.checkpoint than a model has."""

Block = tuple[str, int | None]
Reference = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Layers of a container that repeat.

    Attributes:
        path: Of the container; empty for the model itself.
        layers: Names in the container of all layers of the run.
        period: Layers of a unit.
        names: Of all layers that the container has while it is captured: their own names by those that they then have.
        blocks: The block that begins at each layer of the run, if one does.
    """

    path: str
    layers: tuple[str, ...]
    period: int
    names: Mapping[str, str]
    blocks: tuple[Block | None, ...]

    @property
    def count(self) -> int:
        """Units of the run."""
        return len(self.layers) // self.period

    @property
    def prefix(self) -> str:
        """What paths of layers begin with."""
        return f"{self.path}." if self.path else ""

    def own_path(self, path: str) -> str:
        """Return the path in the whole model for one while it is captured."""
        rest = path.removeprefix(self.prefix)
        name, dot, inner = rest.partition(".")
        if not path.startswith(self.prefix) or name not in self.names:
            return path
        return f"{self.prefix}{self.names[name]}{dot}{inner}"

    def unit_of(self, path: str) -> int | None:
        """Return the unit, of all, to which a path in the whole model belongs."""
        if not path.startswith(self.prefix):
            return None
        name = path.removeprefix(self.prefix).partition(".")[0]
        return self.layers.index(name) // self.period if name in self.layers else None

    def moved(self, path: str, by: int) -> str:
        """Return the path at the same place of another unit."""
        name, dot, inner = path.removeprefix(self.prefix).partition(".")
        if not path.startswith(self.prefix) or name not in self.layers:
            return path
        return f"{self.prefix}{self.layers[self.layers.index(name) + by * self.period]}{dot}{inner}"

    def block_at(self, path: str) -> Block | None:
        """Return the block that begins at the layer of a path."""
        name = path.removeprefix(self.prefix).partition(".")[0]
        return self.blocks[self.layers.index(name)] if name in self.layers else None


def stamped(captured: Captured, run: Run) -> Captured | None:
    """Return a capture with all units of a run; None where those that were captured do not show what the others are.

    Args:
        captured: With the first two and the last two units.
        run: All of them.
    """
    captured = _with_own_names(captured, run)
    kept = (*range(FIRST), *range(run.count - LAST, run.count))
    graph = captured.graph
    labels = _labels(graph, run)
    units = {unit: _Unit(unit) for unit in kept}
    for op in graph.ops:
        if op in labels:
            units[labels[op]].ops(op.leg).append(op)
    reader = _Reader(run, units, graph)
    if not _is_periodic(captured, run, labels, units, reader, kept):
        return None
    return _Stamp(captured, run, units, labels, reader).result()


def _with_own_names(captured: Captured, run: Run) -> Captured:
    """Return a capture whose layers have the names that they have in the whole model."""
    renamed = {
        tensor: dataclasses.replace(tensor, name=run.own_path(tensor.name))
        for tensor in captured.graph.inputs
        if tensor.role in (Role.WEIGHT, Role.BUFFER) and run.own_path(tensor.name) != tensor.name
    }

    def new(tensor: Tensor) -> Tensor:
        return renamed.get(tensor, tensor)

    def op_of(op: Op) -> Op:
        source = dataclasses.replace(op.source, module=run.own_path(op.source.module))
        return dataclasses.replace(op, inputs=tuple(map(new, op.inputs)), source=source)

    graph = captured.graph
    ops = tuple(map(op_of, graph.ops))
    updates = tuple((new(state), new(value)) for state, value in graph.updates)
    return dataclasses.replace(
        captured,
        graph=dataclasses.replace(
            graph, inputs=tuple(map(new, graph.inputs)), outputs=tuple(map(new, graph.outputs)), ops=ops,
            updates=updates,
        ),
        parameters={run.own_path(name): new(tensor) for name, tensor in captured.parameters.items()},
        buffers={run.own_path(name): new(tensor) for name, tensor in captured.buffers.items()},
        gradients={run.own_path(name): new(tensor) for name, tensor in captured.gradients.items()},
    )


def _labels(graph: Graph, run: Run) -> dict[Op, int]:
    """Return the unit of each op that is of one; sums of gradients, which no module makes, follow what is before."""
    labels: dict[Op, int] = {}
    before: int | None = None
    for op in graph.ops:
        unit = run.unit_of(op.source.module)
        if op.leg is Leg.BACKWARD:
            if unit is None and not op.source.module:
                unit = before
            before = unit
        if unit is not None:
            labels[op] = unit
    return labels


@dataclass(slots=True)
class _Unit:
    """Ops of a unit."""

    number: int
    forward: list[Op] = field(default_factory=list)
    backward: list[Op] = field(default_factory=list)

    def ops(self, leg: Leg) -> list[Op]:
        """Return those of a leg."""
        return self.forward if leg is Leg.FORWARD else self.backward


class _Reader:
    """Says what an op of a unit reads, in words that are the same for another unit that reads alike.

    Args:
        run: The run.
        units: Those that were captured.
        graph: The graph.
    """

    def __init__(self, run: Run, units: Mapping[int, _Unit], graph: Graph) -> None:
        self.run = run
        self.made: dict[Tensor, tuple[int, Leg, int, int, int]] = {}
        order = list(units)
        self.place = {unit: place for place, unit in enumerate(order)}
        for unit in units.values():
            for leg in (Leg.FORWARD, Leg.BACKWARD):
                ops = unit.ops(leg)
                for position, op in enumerate(ops):
                    for index, tensor in enumerate(op.outputs):
                        self.made[tensor] = unit.number, leg, position, position - len(ops), index
        self.weights: dict[Tensor, int] = {}
        for tensor in graph.inputs:
            unit_number = run.unit_of(tensor.name) if tensor.role in (Role.WEIGHT, Role.BUFFER) else None
            if unit_number is not None and unit_number in units:
                self.weights[tensor] = unit_number
        self.constants = {tensor for tensor in graph.inputs if tensor.role is Role.CONSTANT}

    def distance(self, unit: int, tensor: Tensor) -> int:
        """Return by how many units what is read lies behind a unit; 0 for what is common to all."""
        other = self.made[tensor][0] if tensor in self.made else self.weights.get(tensor, unit)
        return self.place[other] - self.place[unit]

    def reference(self, unit: int, tensor: Tensor) -> Reference:
        """Return what an op of a unit reads."""
        if tensor in self.made:
            _, leg, position, from_end, index = self.made[tensor]
            distance = self.distance(unit, tensor)
            # Neighbours are counted from their ends: the first and the last may begin in another way.
            return ("made", distance, leg, position if distance == 0 else from_end, index)
        if tensor in self.weights:
            relative = self.run.moved(tensor.name, -self.weights[tensor])
            return ("weight", self.distance(unit, tensor), relative)
        if tensor in self.constants:
            return ("constant", tensor.shape, tensor.dtype)
        return ("common", id(tensor))


def _is_periodic(
    captured: Captured, run: Run, labels: Mapping[Op, int], units: Mapping[int, _Unit], reader: _Reader,
    kept: Sequence[int],
) -> bool:
    """Whether the units in the middle are alike, and nothing but their neighbours reads what they make."""
    template, following = units[kept[TEMPLATE]], units[kept[NEXT]]
    for leg in (Leg.FORWARD, Leg.BACKWARD):
        ops, others = template.ops(leg), following.ops(leg)
        if len(ops) != len(others) or not all(
            _is_same(op, template.number, other, following.number, reader)
            for op, other in zip(ops, others, strict=True)
        ):
            return False
    if not template.forward:
        return False
    inner = {tensor for unit in (template, following) for leg in (Leg.FORWARD, Leg.BACKWARD)
             for op in unit.ops(leg) for tensor in op.outputs}
    for op in captured.graph.ops:
        unit = labels.get(op)
        if unit is None:
            if any(tensor in inner for tensor in op.inputs):
                return False
        elif any(abs(reader.distance(unit, tensor)) > 1 for tensor in op.inputs):
            return False
    return _has_gradients_alike(captured, run, template, following, reader)


def _has_gradients_alike(
    captured: Captured, run: Run, template: _Unit, following: _Unit, reader: _Reader,
) -> bool:
    by = following.number - template.number
    for names in (captured.parameters, captured.buffers):
        for name in names:
            if run.unit_of(name) == template.number and run.moved(name, by) not in names:
                return False
    for name, gradient in captured.gradients.items():
        if run.unit_of(name) != template.number:
            continue
        other = captured.gradients.get(run.moved(name, by))
        if other is None or reader.reference(template.number, gradient) != reader.reference(following.number, other):
            return False
        if reader.reference(template.number, gradient)[:2] != ("made", 0):
            return False
    return True


def _is_same(op: Op, unit: int, other: Op, other_unit: int, reader: _Reader) -> bool:
    """Whether two ops of two units do the same at the same place."""
    if op.bodies or other.bodies or (op.target, op.kind, op.operands) != (other.target, other.kind, other.operands):
        return False
    if [(t.shape, t.dtype) for t in op.outputs] != [(t.shape, t.dtype) for t in other.outputs]:
        return False
    if op.attrs.keys() != other.attrs.keys() or any(
        not _is_like(value, other.attrs[name]) for name, value in op.attrs.items() if name != CHECKPOINT_REGION
    ):
        return False
    return len(op.inputs) == len(other.inputs) and all(
        reader.reference(unit, mine) == reader.reference(other_unit, theirs)
        for mine, theirs in zip(op.inputs, other.inputs, strict=True)
    )


def _is_like(value: object, other: object) -> bool:
    """Whether an op takes as long with another value: rates of dropout differ from layer to layer."""
    if isinstance(value, float) and isinstance(other, float):
        return (value == 0) == (other == 0)
    return value == other


class _Stamp:
    """Writes the units between.

    Args:
        captured: The graph with the kept units.
        run: All units.
        units: The kept ones, by their numbers in the run.
        labels: The unit of each op of one.
        reader: Tells of what a tensor is.
    """

    def __init__(
        self, captured: Captured, run: Run, units: Mapping[int, _Unit], labels: Mapping[Op, int], reader: _Reader,
    ) -> None:
        self.captured, self.run, self.units, self.labels, self.reader = captured, run, units, labels, reader
        self.behind = run.count - LAST  # the first kept unit behind the copies
        self.template = units[TEMPLATE]
        self.numbers = range(TEMPLATE + 1, self.behind)
        self.copies: dict[int, dict[Tensor, Tensor]] = {number: {} for number in self.numbers}
        self.inputs: list[Tensor] = []
        self.constants: dict[Tensor, torch.Tensor] = {}
        self._copy_tensors()

    def _copy_tensors(self) -> None:
        made = [t for leg in (Leg.FORWARD, Leg.BACKWARD) for op in self.template.ops(leg) for t in op.outputs]
        weights = [tensor for tensor, unit in self.reader.weights.items() if unit == TEMPLATE]
        read = {t for leg in (Leg.FORWARD, Leg.BACKWARD) for op in self.template.ops(leg) for t in op.inputs}
        elsewhere = {
            t for op in self.captured.graph.ops if self.labels.get(op) != TEMPLATE for t in op.inputs
        }
        own = [t for t in self.captured.graph.inputs if t in self.reader.constants and t in read - elsewhere]
        for number in self.numbers:
            copies = self.copies[number]
            for tensor in made:
                copies[tensor] = dataclasses.replace(tensor, name=f"{tensor.name}.{self.run.prefix}{number}")
            for tensor in weights:
                copies[tensor] = dataclasses.replace(tensor, name=self.run.moved(tensor.name, number - TEMPLATE))
            for tensor in own:
                copies[tensor] = dataclasses.replace(tensor, name=f"{tensor.name}.{self.run.prefix}{number}")
                self.constants[copies[tensor]] = self.captured.constants[tensor]
            self.inputs += [copies[tensor] for tensor in (*weights, *own)]

    def result(self) -> Captured | None:
        """Return the whole capture, or None if its ops could not run in this order."""
        captured, graph = self.captured, self.captured.graph
        ops = tuple(self._ops())
        inputs = (*graph.inputs, *self.inputs)
        if not _can_run(inputs, ops):
            return None
        whole = dataclasses.replace(
            graph, inputs=inputs, ops=ops, outputs=(*graph.outputs, *self._of_all(graph.outputs)),
            updates=(*graph.updates, *(
                (self.copies[number][state], self.copies[number][value])
                for number in self.numbers for state, value in graph.updates if state in self.copies[number]
            )),
        )
        dtypes = dict(zip(graph.outputs, captured.output_dtypes, strict=True))
        more = [dtypes[t] for number in self.numbers for t in graph.outputs if t in self.copies[number]]
        return dataclasses.replace(
            captured, graph=whole, parameters=self._named(captured.parameters), buffers=self._named(captured.buffers),
            gradients=self._named(captured.gradients), constants={**captured.constants, **self.constants},
            output_dtypes=(*captured.output_dtypes, *more),
        )

    def _of_all(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        listed = list(tensors)
        return [self.copies[number][t] for number in self.numbers for t in listed if t in self.copies[number]]

    def _named(self, names: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = dict(names)
        for number in self.numbers:
            for name, tensor in names.items():
                if self.run.unit_of(name) == TEMPLATE:
                    found[self.run.moved(name, number - TEMPLATE)] = self.copies[number].get(tensor, tensor)
        return found

    def _ops(self) -> Iterable[Op]:
        last_forward = self.template.forward[-1]
        first_backward = self.template.backward[0] if self.template.backward else None
        for op in self.captured.graph.ops:
            if op is first_backward:
                for number in reversed(self.numbers):
                    yield from (self._copy(one, number) for one in self.template.backward)
            yield self._rewired(op)
            if op is last_forward:
                for number in self.numbers:
                    yield from (self._copy(one, number) for one in self.template.forward)

    def _rewired(self, op: Op) -> Op:
        """Return an op of the graph; of the two kept units that were neighbours, with its new neighbour's tensors."""
        unit = self.labels.get(op)
        if unit not in (TEMPLATE, self.behind):
            return op
        inputs = []
        for tensor in op.inputs:
            distance = self.reader.distance(unit, tensor)
            if unit == TEMPLATE and distance == 1:
                tensor = self._at(tensor, self.numbers[0])
            elif unit == self.behind and distance == -1:
                tensor = self._at(tensor, self.numbers[-1])
            inputs.append(tensor)
        return dataclasses.replace(op, inputs=tuple(inputs))

    def _at(self, tensor: Tensor, number: int) -> Tensor:
        """Return what a unit has in the place of a kept unit's tensor."""
        if tensor in self.reader.weights:
            mine = self.run.moved(tensor.name, TEMPLATE - self.reader.weights[tensor])
            same = next(t for t in self.reader.weights if t.name == mine)
        else:
            _, leg, _, from_end, index = self.reader.made[tensor]
            same = self.template.ops(leg)[from_end].outputs[index]
        if number == TEMPLATE:
            return same
        if number == self.behind:
            unit = self.units[self.behind]
            if same in self.reader.weights:
                name = self.run.moved(same.name, self.behind - TEMPLATE)
                return next(t for t in self.reader.weights if t.name == name)
            _, leg, _, from_end, index = self.reader.made[same]
            return unit.ops(leg)[from_end].outputs[index]
        return self.copies[number][same]

    def _copy(self, op: Op, number: int) -> Op:
        """Return an op of another unit."""
        copies, run = self.copies[number], self.run
        inputs = []
        for tensor in op.inputs:
            distance = self.reader.distance(TEMPLATE, tensor)
            if distance:
                inputs.append(self._at(tensor, number + distance))
            else:
                inputs.append(copies.get(tensor, tensor))
        module = run.moved(op.source.module, number - TEMPLATE)
        attrs = op.attrs
        if CHECKPOINT_REGION in attrs:
            attrs = {**attrs, CHECKPOINT_REGION: int(str(attrs[CHECKPOINT_REGION])) + number * REGIONS}
        return dataclasses.replace(
            op, inputs=tuple(inputs), outputs=tuple(copies[tensor] for tensor in op.outputs), attrs=attrs,
            source=_moved(op.source, module), block=self._block(op, module),
        )

    def _block(self, op: Op, module: str) -> Block | None:
        """Return the block of an op of another unit."""
        mine = self.run.block_at(op.source.module)
        return self.run.block_at(module) if op.block == mine else op.block


def _moved(source: Source, module: str) -> Source:
    return dataclasses.replace(source, module=module)


def _can_run(inputs: Iterable[Tensor], ops: Sequence[Op]) -> bool:
    """Whether each op reads what is there, and no two tensors have one name."""
    known = set(inputs)
    for op in ops:
        if not known.issuperset(op.inputs):
            return False
        known.update(op.outputs)
    return len({tensor.name for tensor in known}) == len(known)
