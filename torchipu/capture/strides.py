"""as_strided speaks of memory, the IR of elements: gives such calls their operand in the order of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

READERS = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default"})
WRITERS = frozenset({"aten.as_strided_scatter.default"})


def order_by_memory(module: GraphModule) -> None:
    """Permute the operand of each as_strided whose dimensions lie in another order than row-major.

    A tensor of the IR has no strides; an op without a record sees it row-major. What torch would find at an offset in
    the memory of a transposed tensor is found at that offset after the dimensions are put in the order of memory.
    """
    for node in list(module.graph.nodes):
        if str(node.target) not in READERS | WRITERS:
            continue
        operand = node.args[0]
        order = _order(operand.meta.get("val"))
        if order is None:
            continue
        with module.graph.inserting_before(node):
            node.replace_input_with(operand, _permuted(module, operand, order, node))
        if str(node.target) in WRITERS:
            _turn_back(module, node, order)


def _order(value: Any) -> list[int] | None:
    """Return the dimensions from the largest stride to the smallest, or None where they are so already."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_contiguous():
        return None
    order = sorted(range(value.dim()), key=lambda dim: -value.stride()[dim])
    # Gaps and overlaps have no row-major counterpart; in-place removal hands as_strided the base of such a view.
    return order if value.permute(order).is_contiguous() else None


def _permuted(module: GraphModule, operand: Node, order: list[int], like: Node) -> Node:
    permuted = module.graph.call_function(torch.ops.aten.permute.default, (operand, order))
    permuted.meta = {**like.meta, "val": operand.meta["val"].permute(order)}
    return permuted


def _turn_back(module: GraphModule, node: Node, order: list[int]) -> None:
    """Let the readers of a permuted result see it with its dimensions as they were."""
    value = node.meta["val"]
    inverse = sorted(range(len(order)), key=order.__getitem__)
    readers = list(node.users)
    with module.graph.inserting_after(node):
        back = module.graph.call_function(torch.ops.aten.permute.default, (node, inverse))
    back.meta = {**node.meta, "val": value}
    node.meta = {**node.meta, "val": value.permute(order)}
    for reader in readers:
        reader.replace_input_with(node, back)
