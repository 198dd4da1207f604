"""The cut of a joint graph of the Dynamo door into forward and backward."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch._functorch import partitioners
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from torchipu.capture.checkpointed_norms import with_running_statistics, without_running_statistics
from torchipu.capture.fx_source import checkpoint_region_of
from torchipu.capture.process_wide import replaced
from torchipu.capture.repeated_nodes import merge_repeated
from torchipu.capture.saved_in_blocks import read_as_images

aten = torch.ops.aten

VIEWS = frozenset({
    "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.t.default", "aten.transpose.int",
    "aten.permute.default", "aten.expand.default", "aten.unsqueeze.default", "aten.squeeze.default",
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.detach.default", "aten.alias.default", "aten.unfold.default",
})
PARTS = ("aten.select.int", "aten.slice.Tensor")
EXTREMES = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
"""Their gradients go to the elements that are equal to the result."""
LISTS = ("aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int")
"""Views that show a part of a value, and those that are lists of its parts."""
BACKWARD_TAGS = ("is_backward", "must_be_in_backward")


def partition(joint: GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """Cut a joint graph into forward and backward, saving for the backward what the user's own order would save.

    Views are taken again in the backward instead of saved, so that a transposed weight is the weight itself and an
    activation is saved once however many views the backward reads. What ran under torch.utils.checkpoint is computed
    again in the backward, but for random bits, which are saved.
    """
    merge_repeated(joint, BACKWARD_TAGS)
    retake_views(joint)
    keep_extremes(joint)
    keep_draws(joint)
    without_running_statistics(joint)
    # torch would hand the state of its generator from the forward to the backward: the draws have none left to repeat.
    with replaced(partitioners, "has_recomputable_rng_ops", lambda module: False):
        forward, backward = partitioners.default_partition(joint, joint_inputs, **kwargs)
    with_running_statistics(forward)
    read_as_images(backward)
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
    readers = [node for node in joint.graph.nodes if node.meta.get("partitioner_tag") in BACKWARD_TAGS]
    whole = _kept_whole(joint, readers)
    copies: dict[Node, Node] = {}
    for node in readers:
        for operand in node.all_input_nodes:
            if _is_retaken(operand, whole):
                with joint.graph.inserting_before(node):
                    node.replace_input_with(operand, _copy_view(joint, operand, copies, whole))
    joint.graph.lint()
    joint.recompile()


def keep_extremes(joint: GraphModule) -> None:
    """Have that saved of which the forward has taken the largest, where torch.utils.checkpoint would compute it again.

    The gradient goes to the elements that are equal to the largest one, and other ops stand around what is computed
    again, so that it may be computed in another order of sums: none of its elements would be that one. In eager
    PyTorch it is saved too, as what the op behind the checkpoint reads.
    """
    for node in joint.graph.nodes:
        if node.target not in EXTREMES or checkpoint_region_of(node) is not None:
            continue
        whole = _viewed(node.args[0])
        if checkpoint_region_of(whole) is not None and _is_read_backwards(node):
            for kept in (whole, *(user for user in whole.users if user.target is operator.getitem)):
                kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _is_read_backwards(node: Node) -> bool:
    return any(reader.meta.get("partitioner_tag") in BACKWARD_TAGS for reader in node.users)


def _viewed(node: Node) -> Node:
    """Return what a view shows, and views of views."""
    while str(node.target) in VIEWS or str(node.target) in PARTS:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _copy_view(joint: GraphModule, view: Node, copies: dict[Node, Node], whole: set[Node]) -> Node:
    """Copy a view and the views below it to the current insertion point, once for all readers."""
    if view in copies:
        return copies[view]
    below = {
        operand: _copy_view(joint, operand, copies, whole)
        for operand in view.all_input_nodes if _is_retaken(operand, whole)
    }
    copy = joint.graph.node_copy(view, lambda operand: below.get(operand, operand))
    copy.meta = {**view.meta, "partitioner_tag": "is_backward"}
    copies[view] = copy
    return copy


def _kept_whole(joint: GraphModule, readers: Iterable[Node]) -> set[Node]:
    """Return the values that the backward takes parts of again, such as the steps of a sequence, and that cost nothing.

    These are inputs, which their parts keep in memory anyway; what the backward reads as a whole, too; and what has no
    more elements than all the parts of it that the backward reads.
    """
    parts: dict[Node, set[Node]] = {}
    read: set[Node] = set()
    for operand in {operand for node in readers for operand in node.all_input_nodes}:
        base, part = operand, None
        while _is_part(base) or _is_cheap_view(base):
            part = base if _is_part(base) else part
            base = base.all_input_nodes[0]
        if part is None:
            read.add(base)
        elif base.meta.get("partitioner_tag") not in BACKWARD_TAGS:
            parts.setdefault(base, set()).add(operand)
    return {
        base for base, taken in parts.items()
        if base.op == "placeholder" or base in read or _elements([base]) <= _elements(taken)
    }


def _elements(nodes: Iterable[Node]) -> float:
    """Return how many elements values have in all; infinity where sizes are not known yet."""
    shown = [node.meta.get("val") for node in nodes]
    known = [value.numel() if isinstance(value, torch.Tensor) else None for value in shown]
    return sum(number if isinstance(number, int) else math.inf for number in known)


def _is_part(node: Node) -> bool:
    """Whether a forward node shows a part of a value, or is the list of its parts."""
    if node.meta.get("partitioner_tag") in BACKWARD_TAGS or len(node.all_input_nodes) != 1:
        return False
    if node.target is operator.getitem:
        return str(node.all_input_nodes[0].target) in LISTS
    return str(node.target) in (*PARTS, *LISTS)


def _is_retaken(node: Node, whole: set[Node]) -> bool:
    """Whether the backward takes a forward node again: a view of as many elements, or parts of what is kept whole."""
    if not _is_part(node):
        return _is_cheap_view(node)
    base = node
    while _is_part(base) or _is_cheap_view(base):
        base = base.all_input_nodes[0]
    return base in whole


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
