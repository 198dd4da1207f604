"""Runs ops that free memory as early as they can: gradients are accumulated, and summed up, as they are made.

For device programs only. In the capture's order, what one op alone reads is held through all that stands before it. No
value depends on the order: ops that draw random bits, or round by them, have streams that are numbered before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchipu.device.lower.side_by_side import SIDE_BY_SIDE
from torchipu.device.lower.values import Flow, function_of
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Leg
from torchipu.optable.collective import is_collective
from torchipu.optable.spec import spec_of

Position = tuple[int, ...]
"""Where an op stands: its place in the capture's order, after those of the ops behind which it stands."""


def ordered_for_memory(graph: Graph) -> Graph:
    """Return a graph in which ops that free more than they make stand right behind the last op that they need.

    Args:
        graph: Placed, with everything that is recomputed.

    Returns:
        The graph, or the same object where every op stands well.

    Source: PopART's scheduler orders ops for the least memory that is live at once; ``ipu_hardware.md`` 4.1.
    """
    order = _Order(graph)
    for op in graph.ops:
        order.add(op)
    if not order.has_moved:
        return graph
    places = sorted(range(len(graph.ops)), key=order.positions.__getitem__)
    return replace(graph, ops=tuple(graph.ops[place] for place in places))


@dataclass(slots=True)
class _Touched:
    """The last op so far that wrote a storage, and those that have read it since, by place."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)


class _Order:
    """Places of the ops, one after the other.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.positions: list[Position] = []
        self.has_moved = False
        self._ops = graph.ops
        self._flow = Flow(graph)
        self._touched: dict[Tensor, _Touched] = {}
        self._last_reader = self._last_readers(graph)
        self._barrier: int | None = None

    def _last_readers(self, graph: Graph) -> Mapping[Tensor, int | None]:
        """Return the place of the last reader of each storage that is free then; None where it is held longer."""
        found: dict[Tensor, int | None] = {}
        for place, op in enumerate(graph.ops):
            found.update(dict.fromkeys((self._flow.storage(tensor) for tensor in op.inputs), place))
        held = (*graph.inputs, *self._flow.results(), *(value for _, value in graph.updates))
        return found | dict.fromkeys(map(self._flow.storage, held), None)

    def add(self, op: Op) -> None:
        """Give the next op its position."""
        place = len(self.positions)
        position: Position = (place,)
        if self._may_move(op, place):
            last = max(self._needed(op), key=self.positions.__getitem__, default=None)
            if last is not None and last < place - 1 and self._is_beside(last, op):
                position = (*self.positions[last], place)
                self.has_moved = True
        self.positions.append(position)
        self._touch(op, place)

    def _needed(self, op: Op) -> set[int]:
        """Return the places of the ops that have to run before: makers, and readers of what the op overwrites."""
        storage, needed = self._flow.storage, set()
        for tensor in (*op.inputs, *op.outputs):
            seen = self._touched.get(storage(tensor))
            if seen is not None and seen.writer is not None:
                needed.add(seen.writer)
        for tensor in op.outputs:
            seen = self._touched.get(storage(tensor))
            needed.update(seen.readers if seen is not None else ())
        if self._barrier is not None:
            needed.add(self._barrier)
        return needed

    def _touch(self, op: Op, place: int) -> None:
        for tensor in op.inputs:
            self._touched.setdefault(self._flow.storage(tensor), _Touched()).readers.append(place)
        for tensor in op.outputs:
            self._touched[self._flow.storage(tensor)] = _Touched(place)
        if _is_barrier(op):
            self._barrier = place

    def _may_move(self, op: Op, place: int) -> bool:
        """Whether an op frees more than it makes, and nobody has a say in where it stands."""
        if op.leg is Leg.UPDATE or SIDE_BY_SIDE in op.attrs or id(op) in self._flow.views:
            return False
        storage = self._flow.storage
        operands = {storage(tensor) for tensor in op.inputs}
        freed = sum(_bytes(tensor) for tensor in operands if self._last_reader[tensor] == place)
        if freed == 0 or _is_barrier(op):
            return False
        return freed > sum(_bytes(tensor) for tensor in {storage(out) for out in op.outputs} - operands)

    def _is_beside(self, last: int, op: Op) -> bool:
        """Whether an op runs in the function of another one."""
        before = self._ops[last]
        return id(before) not in self._flow.views and before.leg is op.leg and function_of(before) == function_of(op)


def _is_barrier(op: Op) -> bool:
    """Whether ops stay on their side of an op: it does more than give results."""
    spec = spec_of(op)
    return bool(op.bodies) or is_collective(op) or (spec is not None and (spec.has_effect or spec.on_host))


def _bytes(tensor: Tensor) -> int:
    return tensor.num_elements * tensor.dtype.device_bytes
