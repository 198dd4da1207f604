"""Graphs of neighbours in space, of a fixed number of edges: each node's nearest, void where there are fewer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchipu.geometric.void_edges import mark_void


def knn_graph(
    original: Callable[..., Any], x: torch.Tensor, k: int, batch: torch.Tensor | None = None, loop: bool = False,
    flow: str = "source_to_target", cosine: bool = False, *args: Any, **kwargs: Any,
) -> torch.Tensor:
    """Return edges ``[2, N * k]`` from the nearest ``k`` nodes of its graph to each node.

    Args:
        original: The function that this is in place of.
        x: Positions ``[N, D]``.
        k: Neighbours of a node.
        batch: Graph of each node ``[N]``; None for one graph.
        loop: Whether a node is a neighbour of its own.
        flow: Which end of an edge is the neighbour.
        cosine: Whether the angle is the distance.
        *args: Of no effect here, as ``num_workers``.
        **kwargs: The same.
    """
    if cosine:
        x = torch.nn.functional.normalize(x, dim=-1)
    return _edges(_distances(x, batch, loop=loop), k, float("inf"), flow)


def radius_graph(
    original: Callable[..., Any], x: torch.Tensor, r: float, batch: torch.Tensor | None = None, loop: bool = False,
    max_num_neighbors: int = 32, flow: str = "source_to_target", *args: Any, **kwargs: Any,
) -> torch.Tensor:
    """Return edges ``[2, N * max_num_neighbors]`` from the nearest nodes within a distance to each node.

    Args:
        original: The function that this is in place of.
        x: Positions ``[N, D]``.
        r: Largest distance.
        batch: Graph of each node ``[N]``; None for one graph.
        loop: Whether a node is a neighbour of its own.
        max_num_neighbors: Neighbours of a node; of more, the nearest.
        flow: Which end of an edge is the neighbour.
        *args: Of no effect here, as ``num_workers``.
        **kwargs: The same.
    """
    return _edges(_distances(x, batch, loop=loop), max_num_neighbors, r * r, flow)


def _distances(x: torch.Tensor, batch: torch.Tensor | None, *, loop: bool) -> torch.Tensor:
    """Return squared distances ``[N, N]``, infinite where there is no edge."""
    x = x.detach()
    squared = (x.unsqueeze(1) - x.unsqueeze(0)).square().sum(-1)
    if batch is not None:
        squared = squared.masked_fill(batch.unsqueeze(1) != batch.unsqueeze(0), float("inf"))
    if not loop:
        squared = squared.masked_fill(torch.eye(len(x), dtype=torch.bool, device=x.device), float("inf"))
    return squared


def _edges(squared: torch.Tensor, count: int, limit: float, flow: str) -> torch.Tensor:
    num_nodes = len(squared)
    count = min(count, num_nodes)
    nearest, neighbours = squared.topk(count, largest=False)
    nodes = torch.arange(num_nodes, device=squared.device).unsqueeze(1).expand(-1, count)
    # isfinite: with k neighbours the limit is infinite, and so is the distance to what is none.
    void = ~(nearest.isfinite() & (nearest <= limit)).reshape(-1)
    ends = (neighbours.reshape(-1), nodes.reshape(-1))
    edges = torch.stack(ends if flow == "source_to_target" else ends[::-1])
    mark_void(edges, void)
    return edges
