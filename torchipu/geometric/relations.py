"""Layers and functions that torch_geometric writes by picking edges or nodes: all of them kept here, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn
import torch_geometric.nn.conv.cheb_conv as cheb_conv
import torch_geometric.utils
from torch_geometric.nn.pool.select import SelectTopK
from torch_geometric.utils import scatter

from torchipu.geometric.known_sizes import known_count
from torchipu.poptorch.poptorch_core import createPoptorchError

Replacement = Callable[..., Any]
"""Takes the original and its arguments."""


def methods() -> list[tuple[Any, str, Replacement]]:
    """Return what takes the place of methods of torch_geometric: by class and name."""
    return [
        (cheb_conv.ChebConv, "__norm__", _chebyshev_norm),
        (torch_geometric.nn.RGCNConv, "forward", _refuse_relations),
        (SelectTopK, "forward", _refuse_selection),
        (torch_geometric.nn.ASAPooling, "forward", _refuse_selection),
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


def _refuse_relations(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    raise createPoptorchError(
        "RGCNConv: how many edges each relation has is not known before the program runs. Use "
        "torch_geometric.nn.FastRGCNConv, which has the same parameters and results"
    )


def _refuse_selection(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    raise createPoptorchError(
        f"{type(self).__name__}: how many nodes and edges it leaves is not known before the program runs. Weigh nodes "
        "by their scores instead and keep them all, or pool whole graphs, with global_add_pool and its relatives"
    )
