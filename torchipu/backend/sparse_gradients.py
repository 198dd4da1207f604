"""Sparse gradients, as those of ``torch.nn.Embedding(sparse=True)``: a program computes their places and their values.

The IPU holds no sparse tensors. What a backward returns as one is put together on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

MAKES_SPARSE = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default

Results = list[Any]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of what a sparse tensor is made: its size, nodes of places `[D, N]` and of values `[N, *]`."""

    size: tuple[int, ...]
    places: Node
    values: Node
    is_coalesced: bool | None


def without_sparse_results(gm: GraphModule) -> Callable[[Results], Results] | None:
    """Let a graph return values and places for each sparse result.

    Args:
        gm: Changed in place: values stand where the sparse result stood, places behind all results.

    Returns:
        What makes of the results of the graph those that it had; None if none is sparse.
    """
    output = gm.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    found = [(place, _parts(gm, node)) for place, node in enumerate(results)]
    made = [(place, parts) for place, parts in found if parts is not None]
    if not made:
        return None
    for place, parts in made:
        results[place] = parts.values
        results.append(parts.places)
    output.args = (tuple(results),)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    shapes = [(place, parts.size, parts.is_coalesced) for place, parts in made]

    def put_together(given: Results) -> Results:
        border = len(given) - len(shapes)
        whole = list(given[:border])
        for (place, size, is_coalesced), places in zip(shapes, given[border:], strict=True):
            whole[place] = torch.sparse_coo_tensor(
                places, given[place], size, is_coalesced=is_coalesced, check_invariants=False,
            )
        return whole

    return put_together


def _parts(gm: GraphModule, node: Any) -> _Parts | None:
    """Return the parts of a sparse tensor of known size; those of a sum are the parts of both."""
    if not isinstance(node, Node):
        return None
    if node.target is MAKES_SPARSE:
        _, _, size, places, values = node.args
        if not all(isinstance(one, int) for one in size):  # type: ignore[union-attr]
            return None
        return _Parts(tuple(size), places, values, node.kwargs.get("is_coalesced"))  # type: ignore[arg-type]
    if node.target is not torch.ops.aten.add.Tensor or node.kwargs:
        return None
    first, second = (_parts(gm, operand) for operand in node.args)
    if first is None or second is None:
        return None
    places = _joined(gm, node, [first.places, second.places], 1)
    return _Parts(first.size, places, _joined(gm, node, [first.values, second.values], 0), None)


def _joined(gm: GraphModule, node: Node, parts: list[Node], dim: int) -> Node:
    with gm.graph.inserting_before(node):
        joined = gm.graph.call_function(torch.ops.aten.cat.default, (parts, dim))
    joined.meta = {**node.meta, "val": torch.cat([part.meta["val"] for part in parts], dim)}
    return joined
