"""The user's word on how much of a tile's memory the product or convolution behind a tensor may use."""

from __future__ import annotations

import torch
from torch import library
from torch.fx import GraphModule, Node

AVAILABLE_KEY = "ipu_available_memory"
"""Key of ``node.meta["custom"]`` of a product or convolution that holds the part of the memory."""

MATRIX_OPS = frozenset(
    f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")
)
TARGET = "torchipu.available_memory.default"
MOST_STEPS = 16
"""Ops that may lie between a product and the tensor that stands for it: a bias, casts, views."""

library.define("torchipu::available_memory", "(Tensor self, float part) -> Tensor")
library.impl("torchipu::available_memory", "CompositeExplicitAutograd", lambda value, part: value.clone())
library.register_fake("torchipu::available_memory", lambda value, part: torch.empty_like(value))
library.register_autograd("torchipu::available_memory", lambda context, gradient: (gradient, None))


def available_memory(value: torch.Tensor, part: float) -> torch.Tensor:
    """Say which part of a tile's memory the op that made a tensor may use for temporary values, and its gradients too.

    Args:
        value: Result of a product or a convolution; views of it, and sums with a bias, count as it.
        part: Above 0, at most 1.

    Returns:
        The same value, to be used from here on.
    """
    result: torch.Tensor = torch.ops.torchipu.available_memory(value, part)
    return result


def note_available_memory(module: GraphModule) -> None:
    """Move what `available_memory` says onto the nodes of products and convolutions, and of their gradients."""
    for node in module.graph.nodes:
        if str(node.target) == TARGET:
            maker = _maker(node)
            for one in () if maker is None else _with_gradients(module, maker):
                one.meta["custom"] = {**(one.meta.get("custom") or {}), AVAILABLE_KEY: node.args[1]}


def available_memory_of(node: Node) -> float | None:
    """Return the part of the memory that a node was given, or None."""
    found = (node.meta.get("custom") or {}).get(AVAILABLE_KEY)
    return None if found is None else float(found)


def _maker(node: Node) -> Node | None:
    """Return the product or convolution that a node's first operands lead back to."""
    for _ in range(MOST_STEPS):
        operands = node.all_input_nodes
        if not operands:
            return None
        node = operands[0]
        if str(node.target) in MATRIX_OPS:
            return node
    return None


def _with_gradients(module: GraphModule, maker: Node) -> list[Node]:
    """Return a node and the products that autograd made of it: they carry the number of its call."""
    number = maker.meta.get("seq_nr")
    return [maker] + [
        node for node in module.graph.nodes
        if number is not None and node.meta.get("seq_nr") == number and str(node.target) in MATRIX_OPS
        and _is_backward(node)
    ]


def _is_backward(node: Node) -> bool:
    tag = node.meta.get("partitioner_tag")
    return "autograd_backward" in node.meta or tag in ("is_backward", "must_be_in_backward")
