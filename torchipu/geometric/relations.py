"""Layers and functions that torch_geometric writes by picking edges or nodes: all of them kept here, or refused."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn
import torch_geometric.nn.conv.cheb_conv as cheb_conv
import torch_geometric.utils
from torch_geometric.utils import scatter

from torchipu.geometric.known_sizes import known_count, note_count
from torchipu.geometric.void_edges import mark_void, void_of
from torchipu.poptorch.poptorch_core import createPoptorchError

Replacement = Callable[..., Any]
"""Takes the original and its arguments."""


class _Relations(threading.local):
    """Within which relations the layer at work in this thread normalises its scores."""

    of_edges: torch.Tensor | None = None
    number: int = 1


_relations = _Relations()


def methods() -> list[tuple[Any, str, Replacement]]:
    """Return what takes the place of methods of torch_geometric: by class and name."""
    return [
        (cheb_conv.ChebConv, "__norm__", _chebyshev_norm),
        (torch_geometric.nn.RGCNConv, "forward", _by_relation),
        (torch_geometric.nn.FiLMConv, "forward", _modulated_by_relation),
        (torch_geometric.nn.RGATConv, "message", _attended_within_relation),
        (torch_geometric.nn.ClusterGCNConv, "forward", _cluster_gcn),
        (torch_geometric.nn.HypergraphConv, "forward", _refuse_hyperedges),
        (torch_geometric.nn.EGConv, "forward", _counted),
        (torch_geometric.nn.LabelPropagation, "forward", _propagated),
        (importlib.import_module("torch_geometric.nn.conv.rgat_conv"), "softmax", _softmax_of_relation),
    ]


def functions() -> dict[Callable[..., Any], Replacement]:
    """Return what takes the place of functions of torch_geometric, wherever they are known."""
    return {torch_geometric.utils.to_dense_adj: _to_dense_adj}


def _chebyshev_norm(
    original: Callable[..., Any], self: Any, edge_index: torch.Tensor, num_nodes: int | None,
    edge_weight: torch.Tensor | None, normalization: str | None, lambda_max: Any = None,
    dtype: torch.dtype | None = None, batch: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges and weights of the scaled Laplacian, 2 L / lambda_max - I.

    Its diagonal is the last ``num_nodes`` edges; self-loops of the graph stay among the others, with a weight of zero.
    """
    assert num_nodes is not None
    edge_index, weight = cheb_conv.get_laplacian(edge_index, edge_weight, normalization, dtype, num_nodes)
    if lambda_max is None:
        lambda_max = 2.0 * weight.max()
    elif not isinstance(lambda_max, torch.Tensor):
        lambda_max = torch.tensor(lambda_max, dtype=dtype, device=edge_index.device)
    if batch is not None and lambda_max.numel() > 1:
        lambda_max = lambda_max[batch[edge_index[0]]]
    weight = 2.0 * weight / lambda_max
    weight = weight.masked_fill(weight == float("inf"), 0)
    is_diagonal = torch.arange(weight.shape[0], device=weight.device) >= weight.shape[0] - num_nodes
    mark_void(edge_index, (edge_index[0] == edge_index[1]) & ~is_diagonal, is_weightless=True)
    return edge_index, weight - is_diagonal.to(weight.dtype)


def _to_dense_adj(
    original: Callable[..., Any], edge_index: torch.Tensor, batch: torch.Tensor | None = None,
    edge_attr: torch.Tensor | None = None, max_num_nodes: int | None = None, batch_size: int | None = None,
) -> torch.Tensor:
    """Return adjacencies ``[batch_size, max_num_nodes, max_num_nodes, ...]``; edges beyond that size count nothing."""
    name = "torch_geometric.utils.to_dense_adj"
    if max_num_nodes is None:
        raise createPoptorchError(
            f"{name}: how many nodes the largest graph has is not known before the program runs. Give max_num_nodes="
        )
    if batch is None:
        nodes = edge_index
        graph, batch_size = torch.zeros_like(edge_index[0]), 1 if batch_size is None else batch_size
    else:
        batch_size = known_count(batch) if batch_size is None else batch_size
        if batch_size is None:
            raise createPoptorchError(
                f"{name}: how many graphs there are is not known before the program runs. Give batch_size=, or pass "
                "the batch that the index is of to forward as it is"
            )
        counts = scatter(torch.ones_like(batch), batch, 0, batch_size, "sum")
        graph = batch[edge_index[0]]
        nodes = edge_index - (counts.cumsum(0) - counts)[graph]
    # An edge may end in another graph; where it does torch_geometric counts from that of its source too.
    fits = (nodes < max_num_nodes).all(0)
    place = torch.where(fits, (graph * max_num_nodes + nodes[0]) * max_num_nodes + nodes[1], 0)
    weights = torch.ones(edge_index.shape[1], device=edge_index.device) if edge_attr is None else edge_attr
    weights = weights.masked_fill(~fits.view(-1, *[1] * (weights.dim() - 1)), 0)
    dense = scatter(weights, place, 0, batch_size * max_num_nodes * max_num_nodes, "sum")
    return dense.view(batch_size, max_num_nodes, max_num_nodes, *weights.shape[1:])


# ---------------------------------------------------------------------- edges of a relation
def _only(edge_index: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Return all edges of a graph, of which some mean something."""
    edges, void = edge_index.clone(), void_of(edge_index)
    mark_void(edges, ~kept if void is None else void | ~kept)
    return edges


def _by_relation(
    original: Callable[..., Any], self: Any, x: Any, edge_index: torch.Tensor, edge_type: torch.Tensor | None = None,
) -> torch.Tensor:
    """`RGCNConv.forward`: what each relation sends, one after another."""
    assert edge_type is not None
    x_l, x_r = x if isinstance(x, tuple) else (x, x)
    if x_l is None:
        x_l = torch.arange(self.in_channels_l, device=self.weight.device)
        x_r = x_l if x_r is None else x_r
    size = (x_l.size(0), x_r.size(0))
    weight = self.weight
    if self.num_bases is not None:
        weight = (self.comp @ weight.view(self.num_bases, -1)).view(
            self.num_relations, self.in_channels_l, self.out_channels
        )
    out = torch.zeros(x_r.size(0), self.out_channels, device=x_r.device)
    for relation in range(self.num_relations):
        edges = _only(edge_index, edge_type == relation)
        sent = x_l if torch.is_floating_point(x_r) else weight[relation, x_l]
        h = self.propagate(edges, x=sent, edge_type_ptr=None, size=size)
        if self.num_blocks is not None:
            h = torch.einsum("nbi,bio->nbo", h.view(-1, weight.size(1), weight.size(2)), weight[relation])
            h = h.contiguous().view(-1, self.out_channels)
        elif torch.is_floating_point(x_r):
            h = h @ weight[relation]
        out = out + h
    if self.root is not None:
        out = out + (x_r @ self.root if torch.is_floating_point(x_r) else self.root[x_r])
    return out if self.bias is None else out + self.bias


def _modulated_by_relation(
    original: Callable[..., Any], self: Any, x: Any, edge_index: torch.Tensor, edge_type: torch.Tensor | None = None,
) -> torch.Tensor:
    """`FiLMConv.forward`."""
    if self.num_relations <= 1:
        return original(self, x, edge_index, edge_type)
    assert edge_type is not None
    x = (x, x) if isinstance(x, torch.Tensor) else x
    beta, gamma = self.film_skip(x[1]).split(self.out_channels, dim=-1)
    out = gamma * self.lin_skip(x[1]) + beta
    out = out if self.act is None else self.act(out)
    for relation, (lin, film) in enumerate(zip(self.lins, self.films, strict=True)):
        beta, gamma = film(x[1]).split(self.out_channels, dim=-1)
        edges = _only(edge_index, edge_type == relation)
        out = out + self.propagate(edges, x=lin(x[0]), beta=beta, gamma=gamma)
    return out


def _attended_within_relation(
    original: Callable[..., Any], self: Any, x_i: torch.Tensor, x_j: torch.Tensor, edge_type: torch.Tensor,
    edge_attr: torch.Tensor | None, index: torch.Tensor, ptr: torch.Tensor | None, size_i: int | None,
) -> torch.Tensor:
    """`RGATConv.message`, whose scores add up to one over the edges of a relation that end in a node."""
    if self.attention_mechanism != "within-relation":
        return original(self, x_i, x_j, edge_type, edge_attr, index, ptr, size_i)
    _relations.of_edges, _relations.number = edge_type, self.num_relations
    self.attention_mechanism = "across-relation"
    try:
        return original(self, x_i, x_j, edge_type, edge_attr, index, None, size_i)
    finally:
        self.attention_mechanism = "within-relation"
        _relations.of_edges = None


def _softmax_of_relation(
    original: Callable[..., Any], src: torch.Tensor, index: torch.Tensor, ptr: Any = None, num_nodes: int | None = None,
) -> torch.Tensor:
    """Normalise the scores of a relation's edges that end in a node, where `RGATConv` asks for that."""
    if _relations.of_edges is None:
        return original(src, index, ptr, num_nodes)
    assert num_nodes is not None
    groups = index * _relations.number + _relations.of_edges
    return original(src, groups, None, num_nodes * _relations.number)


# ---------------------------------------------------------------------- others
def _cluster_gcn(original: Callable[..., Any], self: Any, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """`ClusterGCNConv.forward`, with weights of zero for self-loops that others replace."""
    count = x.size(self.node_dim)
    is_loop = edge_index[0] == edge_index[1]
    counted = torch.ones(edge_index.shape[1], dtype=x.dtype, device=x.device)
    if self.add_self_loops:
        loops = torch.arange(count, dtype=edge_index.dtype, device=edge_index.device)
        edge_index = torch.cat([edge_index, loops.expand(2, -1)], dim=1)
        counted = torch.cat([counted.masked_fill(is_loop, 0), counted.new_ones(count)])
        added = torch.ones_like(loops, dtype=torch.bool)
        mark_void(edge_index, torch.cat([is_loop, ~added]), is_weightless=True)
        is_loop = torch.cat([torch.zeros_like(is_loop), added])
    ends = edge_index[1]
    shares = (1.0 / scatter(counted, ends, 0, count, "sum").clamp(min=1.0))[ends]
    weights = shares * counted + self.diag_lambda * shares * is_loop
    out = self.propagate(edge_index, x=x, edge_weight=weights)
    result: torch.Tensor = self.lin_out(out) + self.lin_root(x)
    return result


def _refuse_hyperedges(
    original: Callable[..., Any], self: Any, x: torch.Tensor, hyperedge_index: torch.Tensor, *args: Any, **kwargs: Any,
) -> Any:
    if len(args) < 3 and kwargs.get("num_edges") is None:
        raise createPoptorchError(
            "HypergraphConv: how many hyperedges there are is not known before the program runs. Give num_edges="
        )
    return original(self, x, hyperedge_index, *args, **kwargs)


def _counted(original: Callable[..., Any], self: Any, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """`EGConv.forward`, which asks its edges for the number of nodes."""
    if isinstance(edge_index, torch.Tensor):
        note_count(edge_index, x.size(self.node_dim))
    result: torch.Tensor = original(self, x, edge_index)
    return result


def _propagated(
    original: Callable[..., Any], self: Any, y: torch.Tensor, edge_index: torch.Tensor,
    mask: torch.Tensor | None = None, *args: Any, **kwargs: Any,
) -> torch.Tensor:
    """`LabelPropagation.forward`, with zeros for the labels that a mask leaves out."""
    if y.dtype == torch.long and y.size(0) == y.numel():
        num_classes = known_count(y)
        if num_classes is None:
            raise createPoptorchError(
                "LabelPropagation: how many classes there are is not known before the program runs. Give labels as "
                "torch.nn.functional.one_hot(y, num_classes)"
            )
        y = torch_geometric.utils.one_hot(y.view(-1), num_classes)
    if mask is not None and mask.dtype == torch.bool:
        y, mask = torch.where(mask.view(-1, *[1] * (y.dim() - 1)), y, 0), None
    result: torch.Tensor = original(self, y, edge_index, mask, *args, **kwargs)
    return result
