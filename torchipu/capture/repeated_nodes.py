"""Calls that the forward of a joint graph repeats: a loop over time that takes the same decay at each step, say.

Each would be saved for the backward by itself, though they are one value.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

import torch
from torch.fx import GraphModule, Node


def merge_repeated(joint: GraphModule, backward_tags: Collection[str]) -> None:
    """Have readers of a call that an earlier one repeats read that.

    Args:
        joint: Joint graph, without effects; calls of different blocks or regions stay apart, and so do those of the
            backward, which may compute a value again not to save it.
        backward_tags: What nodes of the backward are tagged with.
    """
    first: dict[Hashable, Node] = {}
    for node in list(joint.graph.nodes):
        if node.meta.get("partitioner_tag") in backward_tags or not _is_plain(node):
            continue
        key = (node.target, _frozen(node.args), _frozen(node.kwargs), _frozen(node.meta.get("custom") or {}))
        try:
            kept = first.setdefault(key, node)
        except TypeError:  # an argument that has no hash
            continue
        if kept is not node:
            node.replace_all_uses_with(kept)
            joint.graph.erase_node(node)


def _is_plain(node: Node) -> bool:
    """Whether a call gives one tensor that follows from its arguments, and is not to be computed again."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or node.meta.get("recompute") is not None:
        return False
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    is_of_torch = target.namespace in ("aten", "prims")
    return is_of_torch and isinstance(node.meta.get("val"), torch.Tensor)


def _frozen(argument: Any) -> Hashable:
    """Return an argument with tuples for lists and dictionaries; equal numbers of other types or signs are apart."""
    if isinstance(argument, (list, tuple)):
        return type(argument).__name__, *(_frozen(each) for each in argument)
    if isinstance(argument, dict):
        return tuple((name, _frozen(value)) for name, value in sorted(argument.items(), key=lambda item: str(item[0])))
    return type(argument), argument.hex() if isinstance(argument, float) else argument
