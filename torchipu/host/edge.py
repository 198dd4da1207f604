"""The edge of a call: what its caller has and expects, and where outputs lie to fit that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from torchipu.host.emit.copy import emit_copy
from torchipu.host.memory import Memory
from torchipu.host.orders import Orders
from torchipu.host.storage import Allocation, Place
from torchipu.ir.graph import Graph, Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """What the caller of a graph has and expects; by default all lies row-major, and nothing is shared with it.

    Attributes:
        strides: By number of an output its strides where it is not row-major, without gaps or overlaps.
        saved: Numbers of outputs that may lie in any order of their dimensions.
        plain: Numbers of outputs that the caller would copy where they do not lie row-major.
        shows: Whether an output may be shown where an input or another output lies, and steps that call torch may have
            inputs and results where the caller has them.
        copied: Numbers of outputs that the caller would copy where they are shown in an input.
        apart: Numbers of outputs that the caller would copy where they are shown in one another.
        written: By number of an output that of the input that the caller writes it over, which overlaps no other one:
            it is that very tensor where it was stored there already.
        in_blocks: Numbers of outputs that may lie with their channels in blocks, as `with_lanes_third` shows them.
        bfloat_inputs: Inputs, floats of the graph, that come as bfloat16, and are converted by the plan.
        bfloat_outputs: Numbers of outputs, floats of the graph, that are returned as bfloat16.
        complex_inputs: Inputs, pairs ``[..., 2]`` of the graph, that come as complex numbers.
        complex_outputs: Numbers of outputs, pairs of the graph, that are returned as complex numbers.
    """

    strides: Mapping[int, Strides] = field(default_factory=dict)
    saved: frozenset[int] = frozenset()
    plain: frozenset[int] = frozenset()
    shows: bool = True
    copied: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()
    written: Mapping[int, int] = field(default_factory=dict)
    in_blocks: frozenset[int] = frozenset()
    bfloat_inputs: frozenset[Tensor] = frozenset()
    bfloat_outputs: frozenset[int] = frozenset()
    complex_inputs: frozenset[Tensor] = frozenset()
    complex_outputs: frozenset[int] = frozenset()

    def expected(self, graph: Graph) -> dict[Tensor, Strides]:
        """Return the strides of outputs that are not row-major."""
        return {graph.outputs[number]: strides for number, strides in self.strides.items()}

    def crossing(self, graph: Graph) -> set[Tensor]:
        """Return the outputs that may lie in blocks: images of several pixels, floats that are returned as such."""
        found = {graph.outputs[number] for number in self.in_blocks - self.bfloat_outputs}
        others = {tensor for number, tensor in enumerate(graph.outputs) if number not in self.in_blocks}
        return {
            tensor for tensor in found - others
            if tensor.dtype is DType.FLOAT and len(tensor.shape) == 4 and prod(tensor.shape[2:]) > 1
        }

    def bfloats_alone(self, graph: Graph) -> set[Tensor]:
        """Return the values that are returned as bfloat16 and as nothing else."""
        others = {tensor for number, tensor in enumerate(graph.outputs) if number not in self.bfloat_outputs}
        return {graph.outputs[number] for number in self.bfloat_outputs} - others


class Outputs:
    """Where the outputs of a plan lie.

    Args:
        graph: Whose they are.
        edge: What the caller expects of them.
        memory: Of the plan.
        orders: In which values may lie.
        end: Lets the steps that compute floats store them as bfloats, too, and returns whether they do.
        may_show: Whether one may be shown where an input or another one lies.
    """

    def __init__(
        self, graph: Graph, edge: Edge, memory: Memory, orders: Orders, end: Callable[[HostTensor, HostTensor], bool],
        *, may_show: bool,
    ) -> None:
        self.graph, self.edge, self.memory, self.orders = graph, edge, memory, orders
        self._end = end
        self.bfloats = edge.bfloats_alone(graph)
        self.may_show = may_show
        self._plain = {graph.outputs[number] for number in edge.plain}

    def place(
        self, number: int, held: HostTensor, pinned: Collection[int], plan: HostPlanner,
    ) -> tuple[HostTensor, bool]:
        """Let the op that makes an output write straight into its buffer where it can; show or copy it otherwise.

        Args:
            number: Of the output.
            held: Where the value lies now.
            pinned: Buffers that have to stay in the arena.
            plan: Which a copy is added to.

        Returns:
            Where the output lies, and whether that is memory of its own.
        """
        tensor, allocation = self.graph.outputs[number], self.memory.of(held)
        dtype = DType.BFLOAT if number in self.edge.bfloat_outputs else tensor.dtype
        strides = self.orders.expected.get(tensor)
        lies_anyhow = strides is None and tensor in self.orders.saved and held.is_dense
        lying = held.permuted(held.order) if lies_anyhow else held if strides is None else held.in_order_of(strides)
        if held.dtype is dtype:
            is_whole = allocation.place is Place.ARENA and self.memory.is_all_of(lying)
            if is_whole and held.buffer not in pinned:
                allocation.place, allocation.index = Place.OUTPUT, number
                return replace(held, strides=strides or held.strides), True  # of dimensions of one element too
            if self._is_shown(number, held, allocation):
                return held, False
        target = self.memory.storage(held.shape, dtype, Place.OUTPUT, number, strides)
        if not (dtype is DType.BFLOAT and tensor in self.bfloats and self._end(held, target)):
            emit_copy(plan, target, held)
        return target, True

    def _is_shown(self, number: int, held: HostTensor, allocation: Allocation) -> bool:
        """Whether an output is shown where an input or another one lies."""
        place, edge = allocation.place, self.edge
        if place is Place.INPUT and number in edge.copied:
            return False
        if place is Place.OUTPUT and edge.apart.issuperset((number, allocation.index)):
            return False
        is_plain = held.is_contiguous or self.graph.outputs[number] not in self._plain
        return self.may_show and is_plain and place in (Place.INPUT, Place.OUTPUT)
