"""Graphs of neighbours in space, of a fixed number of edges: each node's nearest, void where there are fewer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn

from torchipu.geometric.void_edges import mark_void

Replacement = Callable[..., Any]
"""Takes the original and its arguments."""


def functions() -> dict[Callable[..., Any], Replacement]:
    """Return what takes the place of functions of torch_geometric, wherever they are known."""
    return {
        torch_geometric.nn.knn_graph: knn_graph, torch_geometric.nn.radius_graph: radius_graph,
        torch_geometric.nn.knn: knn, torch_geometric.nn.radius: radius, torch_geometric.nn.nearest: nearest,
        torch_geometric.nn.knn_interpolate: knn_interpolate,
    }


# ---------------------------------------------------------------------- among the nodes of one set
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
    return _edges(_own_distances(x, batch, loop=loop), k, float("inf"), flow)


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
    return _edges(_own_distances(x, batch, loop=loop), max_num_neighbors, r * r, flow)


# ---------------------------------------------------------------------- of one set in another
def knn(
    original: Callable[..., Any], x: torch.Tensor, y: torch.Tensor, k: int, batch_x: torch.Tensor | None = None,
    batch_y: torch.Tensor | None = None, cosine: bool = False, *args: Any, **kwargs: Any,
) -> torch.Tensor:
    """Return pairs ``[2, M * k]`` of each of ``y`` and its nearest ``k`` of ``x``.

    Args:
        original: The function that this is in place of.
        x: Positions ``[N, D]``.
        y: Positions ``[M, D]``.
        k: Neighbours of each; with fewer in its graph, layers skip those that are none.
        batch_x: Graph of each of ``x`` ``[N]``; None for one graph.
        batch_y: Graph of each of ``y`` ``[M]``; None for one graph.
        cosine: Whether the angle is the distance.
        *args: Of no effect here, as ``num_workers``.
        **kwargs: The same.
    """
    if cosine:
        x, y = (torch.nn.functional.normalize(one, dim=-1) for one in (x, y))
    return _edges(_distances(y, x, batch_y, batch_x), k, float("inf"), "target_to_source")


def radius(
    original: Callable[..., Any], x: torch.Tensor, y: torch.Tensor, r: float, batch_x: torch.Tensor | None = None,
    batch_y: torch.Tensor | None = None, max_num_neighbors: int = 32, *args: Any, **kwargs: Any,
) -> torch.Tensor:
    """Return pairs ``[2, M * max_num_neighbors]`` of each of ``y`` and its nearest of ``x`` within a distance.

    Args:
        original: The function that this is in place of.
        x: Positions ``[N, D]``.
        y: Positions ``[M, D]``.
        r: Largest distance.
        batch_x: Graph of each of ``x`` ``[N]``; None for one graph.
        batch_y: Graph of each of ``y`` ``[M]``; None for one graph.
        max_num_neighbors: Neighbours of each; of more, the nearest.
        *args: Of no effect here, as ``num_workers``.
        **kwargs: The same.
    """
    return _edges(_distances(y, x, batch_y, batch_x), max_num_neighbors, r * r, "target_to_source")


def nearest(
    original: Callable[..., Any], x: torch.Tensor, y: torch.Tensor, batch_x: torch.Tensor | None = None,
    batch_y: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return for each of ``x`` ``[N, D]`` the nearest of ``y`` ``[M, D]`` of its graph ``[N]``."""
    return _distances(x, y, batch_x, batch_y).argmin(1)


def knn_interpolate(
    original: Callable[..., Any], x: torch.Tensor, pos_x: torch.Tensor, pos_y: torch.Tensor,
    batch_x: torch.Tensor | None = None, batch_y: torch.Tensor | None = None, k: int = 3, num_workers: int = 1,
) -> torch.Tensor:
    """Return features ``[M, C]`` for ``pos_y``: the mean of those of the nearest ``k`` of ``pos_x``, by distance.

    Args:
        original: The function that this is in place of.
        x: Features ``[N, C]``.
        pos_x: Where they are ``[N, D]``.
        pos_y: Where they are asked for ``[M, D]``.
        batch_x: Graph of each of ``pos_x`` ``[N]``; None for one graph.
        batch_y: Graph of each of ``pos_y`` ``[M]``; None for one graph.
        k: Neighbours of each.
        num_workers: Of no effect here.
    """
    squared, places = _distances(pos_y, pos_x, batch_y, batch_x).topk(min(k, len(pos_x)), largest=False)
    weights = (1.0 / squared.clamp(min=1e-16)).unsqueeze(-1)  # of what is infinitely far, zero
    return (x[places] * weights).sum(1) / weights.sum(1)


# ---------------------------------------------------------------------- distances
def _own_distances(x: torch.Tensor, batch: torch.Tensor | None, *, loop: bool) -> torch.Tensor:
    """Return squared distances ``[N, N]``, infinite where there is no edge."""
    squared = _distances(x, x, batch, batch)
    if loop:
        return squared
    return squared.masked_fill(torch.eye(len(x), dtype=torch.bool, device=x.device), float("inf"))


def _distances(
    x: torch.Tensor, y: torch.Tensor, batch_x: torch.Tensor | None, batch_y: torch.Tensor | None,
) -> torch.Tensor:
    """Return squared distances ``[N, M]``, infinite between graphs; they have no gradient."""
    x, y = (one.detach().view(len(one), -1) for one in (x, y))
    squared = (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1)
    if batch_x is None or batch_y is None:
        return squared
    return squared.masked_fill(batch_x.unsqueeze(1) != batch_y.unsqueeze(0), float("inf"))


def _edges(squared: torch.Tensor, count: int, limit: float, flow: str) -> torch.Tensor:
    num_nodes, num_others = squared.shape
    count = min(count, num_others)
    nearest, neighbours = squared.topk(count, largest=False)
    nodes = torch.arange(num_nodes, device=squared.device).unsqueeze(1).expand(-1, count)
    # isfinite: with k neighbours the limit is infinite, and so is the distance to what is none.
    void = ~(nearest.isfinite() & (nearest <= limit)).reshape(-1)
    ends = (neighbours.reshape(-1), nodes.reshape(-1))
    edges = torch.stack(ends if flow == "source_to_target" else ends[::-1])
    mark_void(edges, void)
    return edges
