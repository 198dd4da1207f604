"""The cut of a joint graph of the Dynamo door into forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule, Node

VIEWS = frozenset({
    "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.t.default", "aten.transpose.int",
    "aten.permute.default", "aten.expand.default", "aten.unsqueeze.default", "aten.squeeze.default",
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.detach.default", "aten.alias.default",
})
BACKWARD_TAGS = ("is_backward", "must_be_in_backward")


def partition(joint: GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """Cut a joint graph into forward and backward, saving for the backward what the user's own order would save.

    Views are taken again in the backward instead of saved, so that a transposed weight is the weight itself and an
    activation is saved once however many views the backward reads.
    """
    retake_views(joint)
    forward, backward = default_partition(joint, joint_inputs, **kwargs)
    return forward, backward


def retake_views(joint: GraphModule) -> None:
    """Give backward nodes their own copies of the forward views that they read."""
    copies: dict[Node, Node] = {}
    for node in list(joint.graph.nodes):
        if node.meta.get("partitioner_tag") not in BACKWARD_TAGS:
            continue
        for operand in node.all_input_nodes:
            if _is_cheap_view(operand):
                with joint.graph.inserting_before(node):
                    node.replace_input_with(operand, _copy_view(joint, operand, copies))
    joint.graph.lint()
    joint.recompile()


def _copy_view(joint: GraphModule, view: Node, copies: dict[Node, Node]) -> Node:
    """Copy a view and the views below it to the current insertion point, once for all readers."""
    if view in copies:
        return copies[view]
    below = {operand: _copy_view(joint, operand, copies) for operand in view.all_input_nodes if _is_cheap_view(operand)}
    copy = joint.graph.node_copy(view, lambda operand: below.get(operand, operand))
    copy.meta = {**view.meta, "partitioner_tag": "is_backward"}
    copies[view] = copy
    return copy


def _is_cheap_view(node: Node) -> bool:
    """Whether a forward node is a view that is no smaller than what it shows."""
    if str(node.target) not in VIEWS or node.meta.get("partitioner_tag") in BACKWARD_TAGS:
        return False
    operands = node.all_input_nodes
    if len(operands) != 1:  # sizes that are not known yet
        return False
    shown, base = node.meta.get("val"), operands[0].meta.get("val")
    return isinstance(shown, torch.Tensor) and isinstance(base, torch.Tensor)
