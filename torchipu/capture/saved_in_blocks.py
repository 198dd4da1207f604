"""What compiled autograd makes of values that a forward saved in blocks.

Compiled autograd copies the graph of a backward into its own, and reads what was saved by its shape, which is that of
``[N, blocks, lanes, H, W]`` where the forward computed images so. The backward that it copies therefore begins with a
call for each such value; our own plans read the blocks where they lie, and are made of the graph without these calls.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node


def as_images(saved: torch.Tensor, channels: int) -> torch.Tensor:
    """Return images ``[N, C, H, W]``, given these or ``[N, blocks, lanes, H, W]`` with ``blocks * lanes >= C``."""
    return saved if saved.dim() == 4 else saved.flatten(1, 2).narrow(1, 0, channels)


def read_as_images(backward: GraphModule) -> None:
    """Let a backward read the images that it is given through `as_images`."""
    images = [node for node in backward.graph.find_nodes(op="placeholder") if _may_lie_in_blocks(node)]
    with backward.graph.inserting_before(_first_call(backward)):
        for node in images:
            read = backward.graph.call_function(as_images, (node, node.meta["val"].shape[1]))
            read.meta = dict(node.meta)
            node.replace_all_uses_with(read, lambda user, read=read: user is not read)
    backward.recompile()


def without_reads(backward: GraphModule) -> None:
    """Let a backward read what it is given as it lies."""
    for read in backward.graph.find_nodes(op="call_function", target=as_images):
        read.replace_all_uses_with(read.args[0])
        backward.graph.erase_node(read)
    backward.recompile()


def _may_lie_in_blocks(node: Node) -> bool:
    """Whether an input of a backward is of images of floats, of a known number of channels, that a forward may save."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.name.startswith("tangents"):
        return False
    return value.is_floating_point() and value.dim() == 4 and isinstance(value.shape[1], int)


def _first_call(backward: GraphModule) -> Node:
    return next(node for node in backward.graph.nodes if node.op != "placeholder")
