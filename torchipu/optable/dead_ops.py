"""Which ops of a graph nothing asks for."""

from __future__ import annotations

from dataclasses import replace

from torchipu.ir.graph import Graph, Op
from torchipu.optable.generic import EFFECT_TOKEN
from torchipu.optable.spec import spec_of


def drop_dead(graph: Graph) -> Graph:
    """Return a graph without ops whose results reach neither an output nor an update, but those with an effect.

    Args:
        graph: A valid graph.

    Returns:
        The new graph, or the same object where there are none.
    """
    live = {*graph.outputs, *(value for _, value in graph.updates)}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        spec = spec_of(op)
        has_effect = not op.outputs or EFFECT_TOKEN in op.operands or (spec is not None and spec.has_effect)
        if has_effect or any(tensor in live for tensor in op.outputs):
            live.update(op.inputs)
            kept.append(op)
    if len(kept) == len(graph.ops):
        return graph
    return replace(graph, ops=tuple(reversed(kept)))
