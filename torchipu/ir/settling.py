"""A graph whose sizes are known when it is called, with those of one call in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.guards import Numbers
from torchipu.ir.sizes import settled


class Settling:
    """Puts plain numbers in place of sizes; tensors and ops that have none stay the same objects.

    Args:
        numbers: What each size is.
    """

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self._tensors: dict[Tensor, Tensor] = {}

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor with plain sizes, each time the same one."""
        found = self._tensors.get(tensor)
        if found is None:
            found = self._tensors[tensor] = _with_sizes(tensor, self.numbers)
        return found

    def value(self, value: Any) -> Any:
        """Return a tensor with plain sizes, or a plain number in place of a size."""
        return self.tensor(value) if isinstance(value, Tensor) else settled(value, self.numbers)

    def graph(self, graph: Graph) -> Graph:
        """Return a graph with plain sizes."""
        return Graph(
            graph.name, self._all(graph.inputs), self._all(graph.outputs), tuple([self.op(op) for op in graph.ops]),
            tuple((self.tensor(state), self.tensor(value)) for state, value in graph.updates),
        )

    def border(self, graph: Graph) -> Graph:
        """Return a graph whose inputs and outputs have plain sizes, and whose ops those that they had."""
        updates = tuple((self.tensor(state), self.tensor(value)) for state, value in graph.updates)
        return Graph(graph.name, self._all(graph.inputs), self._all(graph.outputs), graph.ops, updates)

    def _all(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple([self.tensor(tensor) for tensor in tensors])

    def op(self, op: Op) -> Op:
        """Return an op with plain sizes."""
        inputs, outputs, attrs = self._all(op.inputs), self._all(op.outputs), self._attrs(op.attrs)
        if inputs == op.inputs and outputs == op.outputs and attrs is op.attrs and not op.bodies:
            return op
        return Op(  # not by `replace`: this is most of what a new size takes here
            op.kind, inputs, outputs, attrs, op.target, op.operands, op.source, op.placement, op.leg, op.block,
            tuple([self.graph(body) for body in op.bodies]),
        )

    def _attrs(self, attrs: Mapping[str, object]) -> Mapping[str, object]:
        sized = {
            name: plain for name, value in attrs.items() if (plain := settled(value, self.numbers)) is not value
        }
        return {**attrs, **sized} if sized else attrs


def _with_sizes(tensor: Tensor, numbers: Numbers) -> Tensor:
    shape = settled(tensor.shape, numbers)
    return tensor if shape is tensor.shape else Tensor(tensor.name, shape, tensor.dtype, tensor.role)
