"""`PANConv` on dense matrices: the paths of a graph by length, whose number only values tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def convolve(
    original: Callable[..., Any], self: Any, x: torch.Tensor, edge_index: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a `PANConv`.

    torch_geometric keeps the entries that paths reach in a sparse matrix, by another package. Here the matrix is dense.

    Args:
        original: The forward that this is in place of.
        self: The layer.
        x: Nodes ``[N, C]``.
        edge_index: Edges ``[2, E]``.

    Returns:
        Nodes ``[N, F]`` and the normalised matrix of paths ``[N, N]``.
    """
    count = len(x)
    adjacency = torch.zeros(count * count, dtype=x.dtype, device=x.device)
    place = edge_index[1] * count + edge_index[0]
    adjacency = adjacency.scatter_add(0, place, torch.ones_like(place, dtype=x.dtype)).view(count, count)
    paths = torch.eye(count, dtype=x.dtype, device=x.device)
    reached = paths
    entropy = self.weight[0] * paths
    scaled = entropy
    for length in range(1, self.filter_size + 1):
        paths = paths @ adjacency
        # Each length multiplies the weights of the shorter ones, as torch_geometric computes it.
        scaled = self.weight[length] * (scaled @ adjacency)
        entropy = entropy + scaled
        reached = reached + paths
    # An entry counts once, whatever its weight.
    degrees = (reached > 0).to(x.dtype).sum(1)
    norm = degrees.rsqrt()
    matrix = norm.view(1, -1) * entropy * norm.view(-1, 1)
    return self.lin(matrix @ x), matrix
