"""A model as a row of units, modules one after another, with the cycles and bytes of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchipu.device.cost.exchange import host_cycles
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.modules import Module, block_name, cycles_of
from torchipu.ir.types import Leg, Role
from torchipu.optable.marks import MARK
from torchipu.optable.spec import spec_of
from torchipu.target import Target


@dataclass(slots=True)
class Unit:
    """A module that may begin a stage, with the ops that follow it before the next unit.

    Cycles are by available memory, in the order in which `units_of` was given it.

    Attributes:
        path: Dotted path of the module; of the first unit, also the ops before it.
        forward: Cycles of one forward, without host streams.
        host: Cycles of its host streams.
        backward: Cycles of one backward.
        recompute: Cycles of the forward ops that a backward with recomputation runs again.
        update: Cycles of its part of the weight update.
        weights: States that its forward reads.
        kept_bytes: Accumulators and optimiser states.
        state_bytes: The latter alone.
        activation_bytes: What its forward makes and a backward reads.
        entering_bytes: What forward ops of earlier units make and this unit or a later one reads.
    """

    path: str
    forward: list[int]
    backward: list[int]
    recompute: list[int]
    update: int = 0
    host: int = 0
    weights: set[Tensor] = field(default_factory=set)
    kept_bytes: int = 0
    state_bytes: int = 0
    activation_bytes: int = 0
    entering_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """Values that go from a unit to others: over the links, once to each further IPU, where these are not its own.

    Attributes:
        maker: Number of the unit that makes them; of a weight, the unit that reads it first.
        leg: In which; the update for weights, which are copied once an update.
        readers: Numbers of the other units that read them.
        count_bytes: Bytes of a micro-batch.
    """

    maker: int
    leg: Leg
    readers: frozenset[int]
    count_bytes: int


def units_of(
    graph: Graph, modules: Sequence[Module], cycles: Sequence[Mapping[Tensor, int]], clones: Graph, target: Target,
) -> list[Unit]:
    """Return the units of a graph that was placed with a block for each of these modules.

    Args:
        graph: Placed.
        modules: In order.
        cycles: By the first result of each op, for each available memory.
        clones: The same graph after recomputation of every block.
        target: The machine, for its host streams.
    """
    none = [0] * len(cycles)
    units = {block_name(module.path): Unit(module.path, [*none], [*none], [*none]) for module in modules}
    number = {name: position for position, name in enumerate(units)}
    base = _bases(graph)
    made: dict[Tensor, int] = {}
    streamed = {tensor for tensor in (*graph.inputs, *graph.outputs) if not tensor.role.is_state}
    streamed = {tensor for tensor in streamed if tensor.role not in (Role.CONSTANT, Role.HYPERPARAMETER)}
    for op in graph.ops:
        unit = units[_block(op)]
        for tensor in streamed.intersection((*op.inputs, *op.outputs)):
            unit.host += host_cycles(target, tensor.device_bytes)
            streamed.discard(tensor)
        if op.leg is Leg.UPDATE:
            unit.update += cycles_of(op, cycles[0])
            continue
        spent = unit.forward if op.leg is Leg.FORWARD else unit.backward
        for choice, by_tensor in enumerate(cycles):
            spent[choice] += cycles_of(op, by_tensor)
        if op.leg is Leg.FORWARD:
            unit.weights.update(tensor for tensor in op.inputs if tensor.role in (Role.WEIGHT, Role.BUFFER))
            made.update(dict.fromkeys(op.outputs, number[_block(op)]))
    _count_kept(graph, units)
    _count_activations(graph, list(units.values()), made, base, number)
    for choice, by_tensor in enumerate(cycles):
        by_name = {tensor.name: count for tensor, count in by_tensor.items()}
        for op in clones.ops:
            if MARK in op.attrs:
                units[_block(op)].recompute[choice] += by_name.get(str(op.attrs[MARK]), 0)
    return list(units.values())


def edges_of(graph: Graph, modules: Sequence[Module]) -> list[Edge]:
    """Return what goes from unit to unit in a graph that was placed as for `units_of`, each unit a stage."""
    number = {block_name(module.path): position for position, module in enumerate(modules)}
    base, origin = _bases(graph), dict[Tensor, tuple[int, Leg]]()
    readers: dict[Tensor, set[int]] = {}
    for op in graph.ops:
        if op.leg is Leg.UPDATE:
            continue
        here = number[_block(op)]
        for tensor in op.inputs:
            held = base.get(tensor, tensor)
            if held.role in (Role.WEIGHT, Role.BUFFER):
                origin.setdefault(held, (here, Leg.UPDATE))
            if held in origin and origin[held][0] != here:
                readers.setdefault(held, set()).add(here)
        origin.update({tensor: (here, op.leg) for tensor in op.outputs if tensor not in base})
    total: dict[tuple[int, Leg, frozenset[int]], int] = {}
    for tensor, units in readers.items():
        key = (*origin[tensor], frozenset(units))
        total[key] = total.get(key, 0) + tensor.device_bytes
    return [Edge(*key, count) for key, count in total.items()]


def _block(op: Op) -> str:
    assert op.placement is not None
    return op.placement.block


def _bases(graph: Graph) -> dict[Tensor, Tensor]:
    """Return the tensor in whose storage each view lies."""
    base: dict[Tensor, Tensor] = {}
    for op in graph.ops:
        spec = spec_of(op)
        if spec is not None and spec.is_view and op.inputs:
            base.update(dict.fromkeys(op.outputs, base.get(op.inputs[0], op.inputs[0])))
    return base


def _count_kept(graph: Graph, units: Mapping[str, Unit]) -> None:
    """Add accumulators and optimiser states to the unit whose ops write them."""
    due = {tensor for tensor in graph.inputs if tensor.role in (Role.ACCUMULATOR, Role.OPTIMISER_STATE)}
    for op in graph.ops:
        for tensor in due.intersection(op.inputs):
            unit = units[_block(op)]
            unit.kept_bytes += tensor.device_bytes
            unit.state_bytes += tensor.device_bytes if tensor.role is Role.OPTIMISER_STATE else 0
            due.discard(tensor)


def _count_activations(
    graph: Graph, units: Sequence[Unit], made: Mapping[Tensor, int], base: Mapping[Tensor, Tensor],
    number: Mapping[str, int],
) -> None:
    """Add what is kept between the legs, and what crosses from unit to unit."""
    kept: set[Tensor] = set()
    last_read: dict[Tensor, int] = {}
    for op in graph.ops:
        for tensor in op.inputs:
            held = base.get(tensor, tensor)
            if held not in made:
                continue
            if op.leg is Leg.BACKWARD and held not in kept:
                kept.add(held)
                units[made[held]].activation_bytes += held.device_bytes
            elif op.leg is Leg.FORWARD:
                last_read[held] = max(last_read.get(held, 0), number[_block(op)])
    for tensor, last in last_read.items():
        for position in range(made[tensor] + 1, last + 1):
            units[position].entering_bytes += tensor.device_bytes
