"""The cut of a joint graph of the Dynamo door into forward and backward."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._functorch import partitioners
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from torchipu.capture.fx_source import checkpoint_region_of
from torchipu.capture.process_wide import replaced

aten = torch.ops.aten

VIEWS = frozenset({
    "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.t.default", "aten.transpose.int",
    "aten.permute.default", "aten.expand.default", "aten.unsqueeze.default", "aten.squeeze.default",
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.detach.default", "aten.alias.default", "aten.unfold.default",
})
BACKWARD_TAGS = ("is_backward", "must_be_in_backward")


def partition(joint: GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """Cut a joint graph into forward and backward, saving for the backward what the user's own order would save.

    Views are taken again in the backward instead of saved, so that a transposed weight is the weight itself and an
    activation is saved once however many views the backward reads. What ran under torch.utils.checkpoint is computed
    again in the backward, but for random bits, which are saved.
    """
    retake_views(joint)
    keep_draws(joint)
    # torch would hand the state of its generator from the forward to the backward: the draws have none left to repeat.
    with replaced(partitioners, "has_recomputable_rng_ops", lambda module: False):
        forward, backward = partitioners.default_partition(joint, joint_inputs, **kwargs)
    return forward, backward


def keep_draws(joint: GraphModule) -> None:
    """Have random bits saved that torch.utils.checkpoint would have drawn again: of a dropout no more than its mask."""
    for node in list(joint.graph.nodes):
        if checkpoint_region_of(node) is None or not _draws(node):
            continue
        if node.target is aten.native_dropout.default:
            _drop_again(joint, node)
        for drawn in (node, *(user for user in node.users if user.target is operator.getitem)):
            drawn.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    joint.recompile()


def _draws(node: Node) -> bool:
    """Whether the results of a call are random, as far as its arguments tell."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if node.target is aten.native_dropout.default:
        return given.get("train") is not False
    defaults = {a.name: a.default_value for a in node.target._schema.arguments if a.has_default_value()}
    return (defaults | given).get("dropout_p", 1.0) != 0.0  # attention is random by what it drops alone


def _drop_again(joint: GraphModule, dropout: Node) -> None:
    """Let readers of what a dropout leaves read the product with its mask, which costs no draw to make again."""
    value, rate = dropout.args[:2]
    scale = 0.0 if rate == 1 else 1.0 / (1.0 - rate)  # type: ignore[operator]
    taken = list(dropout.users)
    with joint.graph.inserting_after(dropout):
        mask = joint.graph.call_function(operator.getitem, (dropout, 1))
    with joint.graph.inserting_after(mask):
        product = joint.graph.call_function(aten.native_dropout_backward.default, (value, mask, scale))
    for node, index in ((mask, 1), (product, 0)):
        node.meta = {**dropout.meta, "val": dropout.meta["val"][index]}
    for old in taken:
        old.replace_all_uses_with(mask if old.args[1] == 1 else product)
        joint.graph.erase_node(old)


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


def shares_memory(node: Node) -> bool:
    """Whether a node lies in the memory of its first argument, also where torch only promises that nobody else does."""
    if str(node.target) in VIEWS:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _is_cheap_view(node: Node) -> bool:
    """Whether a forward node is a view that is no smaller than what it shows, or a copy with repeated elements."""
    if not (str(node.target) in VIEWS or _repeats(node)) or node.meta.get("partitioner_tag") in BACKWARD_TAGS:
        return False
    operands = node.all_input_nodes
    if len(operands) != 1:  # sizes that are not known yet
        return False
    shown, base = node.meta.get("val"), operands[0].meta.get("val")
    return isinstance(shown, torch.Tensor) and isinstance(base, torch.Tensor)


def _repeats(node: Node) -> bool:
    """Whether a node copies a view that repeats elements, as windows do that overlap."""
    if node.target is not aten.clone.default:
        return False
    base: Any = node
    while (base is node or str(base.target) in VIEWS) and len(base.all_input_nodes) == 1:
        base = base.all_input_nodes[0]
    shown, held = node.meta.get("val"), base.meta.get("val")
    if not isinstance(shown, torch.Tensor) or not isinstance(held, torch.Tensor):
        return False
    is_known = all(isinstance(size, int) for size in (*shown.shape, *held.shape))
    return is_known and shown.numel() > held.numel()
