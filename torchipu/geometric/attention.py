"""Attention between the nodes of a graph, for batches whose graphs have any number of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.nn import GPSConv

from torchipu.poptorch.poptorch_core import createPoptorchError


def attend(
    original: Callable[..., Any], self: GPSConv, x: torch.Tensor, edge_index: torch.Tensor,
    batch: torch.Tensor | None = None, **kwargs: Any,
) -> torch.Tensor:
    """Compute a `GPSConv`: messages along edges beside attention among the nodes of each graph.

    torch_geometric lays graphs beside one another in a dense batch as wide as the largest, which only values tell.
    Here each node attends to all, with those of other graphs masked: the same numbers, of ``[N, N]`` scores.

    Args:
        original: The forward that this is in place of.
        self: The layer.
        x: Nodes ``[N, C]``.
        edge_index: Edges ``[2, E]``.
        batch: Graph of each node ``[N]``; None for one graph.
        **kwargs: Further arguments of the layer that sends messages.
    """
    if not isinstance(self.attn, torch.nn.MultiheadAttention):
        raise createPoptorchError(
            f"GPSConv: attn_type={self.attn_type!r} has sizes that values tell; use attn_type='multihead'"
        )

    def normalised(norm: torch.nn.Module | None, value: torch.Tensor) -> torch.Tensor:
        if norm is None:
            return value
        return norm(value, batch=batch) if self.norm_with_batch else norm(value)

    def dropped(value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(value, p=self.dropout, training=self.training)

    others = None if batch is None else batch.unsqueeze(0) != batch.unsqueeze(1)
    attended, _ = self.attn(x[None], x[None], x[None], attn_mask=others, need_weights=False)
    out = normalised(self.norm2, dropped(attended[0]) + x)
    if self.conv is not None:
        local = dropped(self.conv(x, edge_index, **kwargs)) + x
        out = normalised(self.norm1, local) + out
    return normalised(self.norm3, out + self.mlp(out))
