"""Marks updates by an index that was expanded: it says the same for all lines, so whole rows are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchipu.device.tilings.indexed import SHARED_INDEX
from torchipu.ir.graph import Graph, Op, Tensor, walk_ops

KIND = "scatter_add"
EXPANDS = ("aten.expand.default", "aten.expand_copy.default")


def share_indices(graph: Graph) -> Graph:
    """Return a graph whose ``scatter_add`` ops say so where their index is expanded along all other dimensions.

    PyTorch Geometric adds messages up by ``index.unsqueeze(-1).expand_as(messages)``. PopTorch adds whole rows then.

    Args:
        graph: A valid graph.

    Returns:
        The new graph, or the same object where there are none.
    """
    makers = {result: op for op in walk_ops(graph.ops) for result in op.outputs if op.target in EXPANDS}
    if not makers or not any(op.kind == KIND for op in walk_ops(graph.ops)):
        return graph
    return replace(graph, ops=_marked(graph.ops, makers))


def _marked(ops: Sequence[Op], makers: dict[Tensor, Op]) -> tuple[Op, ...]:
    """Return the ops with marks, those in the bodies of control flow too."""
    made = []
    for op in ops:
        if op.kind == KIND and SHARED_INDEX not in op.attrs and _is_shared(op, makers):
            op = replace(op, attrs={**op.attrs, SHARED_INDEX: True})
        if op.bodies:
            op = replace(op, bodies=tuple(replace(body, ops=_marked(body.ops, makers)) for body in op.bodies))
        made.append(op)
    return tuple(made)


def _is_shared(op: Op, makers: dict[Tensor, Op]) -> bool:
    index = op.needed("index")
    maker = makers.get(index)
    if maker is None or len(index.shape) < 2 or 0 in index.shape:
        return False
    given = maker.inputs[0].shape
    before = (*(1,) * (len(index.shape) - len(given)), *given)
    dim = op.integer("dim") % len(index.shape)
    return all(size == 1 for place, size in enumerate(before) if place != dim) and before[dim] == index.shape[dim]
