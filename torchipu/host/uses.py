"""Which ops make and read the values of a graph, those of the bodies of control flow included."""

from __future__ import annotations

from collections.abc import Iterator, Set

from torchipu.ir.graph import Graph, Op, Tensor, walk_ops
from torchipu.optable.spec import spec_of


class Uses:
    """Who makes a value, and who reads it.

    Attributes:
        makers: The op that makes each result.
        readers: For each tensor the ops that read its values, in their order.
        kept: What is read after the ops have run: results of the graph and of bodies, and next values of states.
    """

    def __init__(self, graph: Graph) -> None:
        self.makers = {result: op for op in walk_ops(graph.ops) for result in op.outputs}
        self.readers: dict[Tensor, list[Op]] = {}
        self.kept = {value for _, value in graph.updates}
        for part in with_bodies(graph):
            for op in part.ops:
                for operand in operands_read(op):
                    self.readers.setdefault(operand, []).append(op)
            self.kept |= set(part.outputs)

    def is_read(self, tensor: Tensor, except_by: Set[Op] = frozenset()) -> bool:
        """Whether anything reads a value, beside some ops."""
        return tensor in self.kept or any(op not in except_by for op in self.readers.get(tensor, ()))


def with_bodies(graph: Graph) -> Iterator[Graph]:
    """Yield a graph and those that its ops run."""
    yield graph
    for op in graph.ops:
        for body in op.bodies:
            yield from with_bodies(body)


def operands_read(op: Op) -> tuple[Tensor, ...]:
    """Return the operands whose values matter, not their shapes alone."""
    spec = spec_of(op)
    if spec is None or not spec.shape_only:
        return op.inputs
    ignored = {op.operand(name) for name in spec.shape_only}
    return tuple(operand for operand in op.inputs if operand not in ignored)
