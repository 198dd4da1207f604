"""A graph in which nothing is recomputed, for those to whom storage between the legs costs nothing."""

from __future__ import annotations

from dataclasses import replace

from torchipu.ir.graph import Graph, Tensor
from torchipu.optable.marks import MARK


def undone(graph: Graph) -> Graph:
    """Return the graph without its clones: what a clone gives is what its original gave.

    For readers to whom storage between the legs costs nothing, such as the host.
    """
    clones = {op for op in graph.ops if MARK in op.attrs}
    if not clones:
        return graph
    original = {op.outputs[0].name: op for op in graph.ops if op.outputs and op not in clones}
    same: dict[Tensor, Tensor] = {}
    for op in graph.ops:
        if op in clones:
            # A clone gives the first results of its original, without states that this changed.
            same.update(zip(op.outputs, original[str(op.attrs[MARK])].outputs, strict=False))
    ops = tuple(
        replace(op, inputs=tuple(same.get(tensor, tensor) for tensor in op.inputs)) if any(t in same for t in op.inputs)
        else op for op in graph.ops if op not in clones
    )
    return replace(
        graph, ops=ops, outputs=tuple(same.get(tensor, tensor) for tensor in graph.outputs),
        updates=tuple((state, same.get(value, value)) for state, value in graph.updates),
    )
