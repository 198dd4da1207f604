"""Batch normalisations under torch.utils.checkpoint, which the backward computes again.

That they keep running statistics is no part of it: these are as the forward has left them when the backward runs, and
autograd refuses to hand over what was written. So the two are apart while a joint graph is cut.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from torchipu.capture.fx_source import checkpoint_region_of

aten = torch.ops.aten
KEEPING, ALONE = aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats
GRADIENT, RUNNING, TRAIN = aten.native_batch_norm_backward.default, 3, 7
"""The gradient, and which of its arguments are the running statistics, and whether it is that of the batch's."""
OF_BATCH = 3
"""The results of a normalisation that come first: normalised values, means and reciprocals of deviations."""


def without_running_statistics(joint: GraphModule) -> None:
    """Let readers of what a checkpointed normalisation makes of a batch read one that keeps no running statistics."""
    for node in list(joint.graph.find_nodes(op="call_function", target=KEEPING)):
        if checkpoint_region_of(node) is None:
            continue
        x, weight, bias, _, _, *how = node.args
        with joint.graph.inserting_after(node):
            alone = joint.graph.call_function(ALONE, (x, weight, bias, *how))
        alone.meta = {**node.meta, "val": node.meta["val"][:OF_BATCH]}
        _read_instead(node, alone)
    for node in joint.graph.find_nodes(op="call_function", target=GRADIENT):
        if node.args[TRAIN]:  # by the statistics of the batch: the running ones are not looked at
            node.args = (*node.args[:RUNNING], None, None, *node.args[RUNNING + 2 :])
    joint.recompile()


def with_running_statistics(forward: GraphModule) -> None:
    """Let one normalisation of the forward do what two did for the sake of the cut."""
    alone = {node.args[:OF_BATCH]: node for node in forward.graph.find_nodes(op="call_function", target=ALONE)}
    for node in forward.graph.find_nodes(op="call_function", target=KEEPING):
        other = alone.get(node.args[:OF_BATCH])
        if other is not None and other.args[OF_BATCH:] == node.args[OF_BATCH + 2 :]:
            _read_instead(other, node)
            forward.graph.erase_node(other)
    forward.recompile()


def _read_instead(old: Node, new: Node) -> None:
    """Take the results of a batch from another normalisation."""
    for part in list(old.users):
        if part.target is operator.getitem and part.args[1] < OF_BATCH:  # type: ignore[operator]
            part.update_arg(0, new)
