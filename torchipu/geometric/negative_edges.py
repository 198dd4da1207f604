"""Edges that are drawn: pairs of nodes without an edge, and edges that are dropped, in fixed numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn
import torch_geometric.utils
from torch.nn.functional import softplus

from torchipu.geometric.known_sizes import known_count
from torchipu.geometric.void_edges import mark_void, void_of
from torchipu.poptorch.poptorch_core import createPoptorchError

KEPT = "_torchipu_kept"
"""Attribute of a `SuperGATConv`: which of its edges its loss counts ``[E]``, of those that forward has drawn last."""
Replacement = Callable[..., Any]
"""Takes the original and its arguments."""


def methods() -> list[tuple[Any, str, Replacement]]:
    """Return what takes the place of methods of torch_geometric: by class and name."""
    layer = torch_geometric.nn.SuperGATConv
    return [
        (layer, "positive_sampling", _keep_edges), (layer, "negative_sampling", _draw_pairs),
        (layer, "get_attention_loss", _attention_loss),
    ]


def functions() -> dict[Callable[..., Any], Replacement]:
    """Return what takes the place of functions of torch_geometric, wherever they are known."""
    utils = torch_geometric.utils
    return {
        utils.negative_sampling: negative_sampling, utils.batched_negative_sampling: batched_negative_sampling,
        utils.structured_negative_sampling: structured_negative_sampling, utils.dropout_edge: dropout_edge,
    }


# ---------------------------------------------------------------------- pairs without an edge
def negative_sampling(
    original: Callable[..., Any], edge_index: torch.Tensor, num_nodes: Any = None, num_neg_samples: Any = None,
    method: str = "sparse", force_undirected: bool = False,
) -> torch.Tensor:
    """Return pairs of nodes without an edge ``[2, S]``, each as likely as any other.

    torch_geometric draws until it has enough. Here every pair gets a random number, ``[N, N]`` of them, and the largest
    are taken. Where a graph has fewer pairs than asked for they come again, and torch_geometric returns fewer.

    Args:
        original: The function that this is in place of.
        edge_index: Edges ``[2, E]``.
        num_nodes: Nodes, or those of both sides.
        num_neg_samples: Pairs, or how many for each edge; None for one.
        method: Of no effect here.
        force_undirected: Whether to return each pair both ways.
    """
    num_nodes = _nodes_of(edge_index, num_nodes, "negative_sampling")
    is_bipartite = not isinstance(num_nodes, int)
    rows, columns = num_nodes if is_bipartite else (num_nodes, num_nodes)
    is_free = _is_free(edge_index, rows, columns, self_loops=is_bipartite)
    count = _count(num_neg_samples, edge_index.shape[1])
    if force_undirected and not is_bipartite:
        return _both_ways(is_free, count)
    return _drawn(is_free, count)


def batched_negative_sampling(
    original: Callable[..., Any], edge_index: torch.Tensor, batch: Any, num_neg_samples: Any = None,
    method: str = "sparse", force_undirected: bool = False,
) -> torch.Tensor:
    """Return pairs of nodes of one graph each that have no edge ``[2, S]``.

    As many as torch_geometric asks of all graphs together, from all their pairs alike, where it asks each graph for
    its own number.

    Args:
        original: The function that this is in place of.
        edge_index: Edges ``[2, E]``.
        batch: Graph of each node ``[N]``, or of those of both sides.
        num_neg_samples: Pairs of each graph, or how many for each edge; None for one.
        method: Of no effect here.
        force_undirected: Whether to return each pair both ways.
    """
    is_bipartite = not isinstance(batch, torch.Tensor)
    sources, ends = batch if is_bipartite else (batch, batch)
    count = _count(num_neg_samples, edge_index.shape[1])
    if isinstance(num_neg_samples, int):
        num_graphs = known_count(sources)
        if num_graphs is None:
            raise createPoptorchError(
                "torch_geometric.utils.batched_negative_sampling: how many graphs there are is not known before the "
                "program runs. Give num_neg_samples as a share of the edges, or pass the batch to forward as it is"
            )
        count *= num_graphs
    is_free = _is_free(edge_index, len(sources), len(ends), self_loops=is_bipartite)
    is_free = is_free & (sources.unsqueeze(1) == ends.unsqueeze(0))
    if force_undirected and not is_bipartite:
        return _both_ways(is_free, count)
    return _drawn(is_free, count)


def structured_negative_sampling(
    original: Callable[..., Any], edge_index: torch.Tensor, num_nodes: int | None = None,
    contains_neg_self_loops: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return both ends of each edge and a node to which its source has none, ``[E]`` each, of ``[E, N]`` numbers.

    Args:
        original: The function that this is in place of.
        edge_index: Edges ``[2, E]``.
        num_nodes: Nodes.
        contains_neg_self_loops: Whether that node may be the source.
    """
    num_nodes = _nodes_of(edge_index, num_nodes, "structured_negative_sampling")
    is_free = _is_free(edge_index, num_nodes, num_nodes, self_loops=contains_neg_self_loops)
    numbers = torch.rand(edge_index.shape[1], num_nodes, device=edge_index.device)
    drawn = numbers.masked_fill(~is_free[edge_index[0]], -1.0).argmax(1)
    return edge_index[0], edge_index[1], drawn


def _nodes_of(edge_index: torch.Tensor, num_nodes: Any, name: str) -> Any:
    num_nodes = known_count(edge_index) if num_nodes is None else num_nodes
    if num_nodes is None:
        raise createPoptorchError(
            f"torch_geometric.utils.{name}: how many nodes there are is not known before the program runs. Give "
            "num_nodes="
        )
    return num_nodes


def _count(asked: Any, num_edges: int) -> int:
    if asked is None:
        return num_edges
    return int(asked * num_edges) if isinstance(asked, float) else int(asked)


def _is_free(edge_index: torch.Tensor, rows: int, columns: int, *, self_loops: bool) -> torch.Tensor:
    """Return which pairs have no edge ``[rows, columns]``; whether a node and itself are one is asked for."""
    place = edge_index[0] * columns + edge_index[1]
    void = void_of(edge_index)
    if void is not None:
        place = torch.where(void, rows * columns, place)
    has_edge = torch.zeros(rows * columns + 1, device=edge_index.device).scatter(0, place, 1.0)
    is_free = has_edge[:-1].view(rows, columns) == 0
    if self_loops:
        return is_free
    return is_free & ~torch.eye(rows, dtype=torch.bool, device=edge_index.device)


def _both_ways(is_free: torch.Tensor, count: int) -> torch.Tensor:
    """Return pairs that are free both ways, each one both ways ``[2, count]``."""
    nodes = torch.arange(len(is_free), device=is_free.device)
    pairs = _drawn(is_free & is_free.T & (nodes.unsqueeze(1) < nodes), count // 2)
    return torch.cat([pairs, pairs.flip(0)], dim=1)


def _drawn(is_free: torch.Tensor, count: int) -> torch.Tensor:
    """Return ``count`` of the pairs that are free ``[2, count]``, again from the first where there are fewer."""
    columns = is_free.shape[1]
    numbers = torch.rand(is_free.shape, device=is_free.device).masked_fill(~is_free, -1.0).flatten()
    places = numbers.topk(min(count, numbers.numel())).indices
    available = is_free.sum().clamp(min=1)
    places = places[torch.arange(count, device=is_free.device) % available]
    return torch.stack([places // columns, places % columns])


# ---------------------------------------------------------------------- edges that are dropped
def dropout_edge(
    original: Callable[..., Any], edge_index: torch.Tensor, p: float = 0.5, force_undirected: bool = False,
    training: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all edges, of which layers skip those that are dropped, and which are kept ``[E]``.

    Args:
        original: The function that this is in place of.
        edge_index: Edges ``[2, E]``.
        p: How likely an edge is dropped.
        force_undirected: Whether to drop both ways of a pair or none, which is refused.
        training: Whether to drop any.
    """
    if not training or p == 0.0 or not 0.0 <= p <= 1.0:
        return original(edge_index, p, force_undirected, training)
    if force_undirected:
        raise createPoptorchError(
            "torch_geometric.utils.dropout_edge: force_undirected=True sorts edges by direction, and how many there "
            "are of each is not known before the program runs. Drop edges where the data is made, or each way by itself"
        )
    kept = torch.rand(edge_index.shape[1], device=edge_index.device) >= p
    void = void_of(edge_index)
    made = edge_index.clone()
    mark_void(made, ~kept if void is None else void | ~kept)
    return made, kept


# ---------------------------------------------------------------------- SuperGATConv
def _keep_edges(original: Callable[..., Any], self: Any, edge_index: torch.Tensor) -> torch.Tensor:
    """`SuperGATConv.positive_sampling`: all edges, and which of them the loss counts."""
    void = void_of(edge_index)
    kept, _ = dropout_edge(torch_geometric.utils.dropout_edge, edge_index, 1.0 - self.edge_sample_ratio,
                           training=self.training)
    dropped = void_of(kept)
    void = dropped if dropped is not None else void
    setattr(self, KEPT, None if void is None else ~void)
    return kept


def _draw_pairs(
    original: Callable[..., Any], self: Any, edge_index: torch.Tensor, num_nodes: int,
    batch: torch.Tensor | None = None,
) -> torch.Tensor:
    """`SuperGATConv.negative_sampling`: a pair is free where there is an edge neither way."""
    count = int(self.neg_sample_ratio * self.edge_sample_ratio * edge_index.shape[1])
    if not self.is_undirected:
        void = void_of(edge_index)
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
        if void is not None:
            mark_void(edge_index, torch.cat([void, void]))
    if batch is None:
        return negative_sampling(torch_geometric.utils.negative_sampling, edge_index, num_nodes, count)
    return batched_negative_sampling(torch_geometric.utils.batched_negative_sampling, edge_index, batch, count)


def _attention_loss(original: Callable[..., Any], self: Any) -> torch.Tensor:
    """`SuperGATConv.get_attention_loss`, of the edges that mean something."""
    kept = getattr(self, KEPT, None)
    if not self.training or kept is None:
        return original(self)
    scores = self.att_x.mean(dim=-1)
    # Binary cross entropy, spelt out: of a function of torch's PopTorch would take the rows for the model's loss.
    losses = softplus(scores) - scores * self.att_y
    counts = torch.cat([kept, kept.new_ones(len(losses) - len(kept))]).to(losses.dtype)
    return (losses * counts).sum() / counts.sum()
