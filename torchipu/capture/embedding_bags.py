"""The sparse gradient of bags of embeddings, taken apart into that of an embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MEAN = 1
"""The mode of bags whose members are averaged."""


def bag_gradient(
    grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, bag_size: Tensor, maximum_indices: Tensor,
    num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:
    """Return the sparse gradient of a table `[num_weights, C]`, as `aten._embedding_bag_backward`; dense ones are ops.

    Args:
        grad: That of the bags, `[B, C]`.
        indices: Rows of the table that lie in bags, `[N]`.
        offsets: Where bags begin in these, `[B]`.
        offset2bag: Not looked at: eager leaves it empty for some bags.
        bag_size: How many members of a bag count, `[B]`.
        maximum_indices: Not looked at: there are no sparse gradients of maxima.
        num_weights: Rows of the table.
        scale_grad_by_freq: Whether gradients of a row are divided by how often it is picked.
        mode: How bags are made of their members.
        sparse: Whether the gradient is.
        per_sample_weights: Factors of the members, `[N]`.
        padding_idx: A row without a gradient.
    """
    if not sparse:
        return NotImplemented
    bags = torch.searchsorted(offsets, torch.arange(indices.shape[0], device=indices.device), right=True) - 1
    if mode == MEAN:
        grad = grad / bag_size.clamp(min=1).unsqueeze(1)
    rows = grad.index_select(0, bags)
    rows = rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(1)
    return torch.ops.aten.embedding_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq, True)
