"""Functions of PyTorch Geometric whose sizes depend on values, in a form for programs of fixed sizes.

Outside captured models each is the original. Within one, a size that torch_geometric would read from an index is taken
from the batch that the index came with, or else asked for.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn
import torch_geometric.utils
from torch_geometric.nn.aggr import Aggregation, SumAggregation

from torchipu import poptorch
from torchipu.geometric import (
    attention,
    kinds_of_nodes,
    negative_edges,
    neighbours,
    path_counts,
    refusals,
    relations,
    self_loops,
)
from torchipu.geometric.known_sizes import known_count
from torchipu.geometric.void_edges import taken_void, watch_layers
from torchipu.poptorch.poptorch_core import createPoptorchError

DIM_SIZE = "_torchipu_dim_size"
"""Attribute of an aggregation: into how many groups it sums where a call does not say so."""


def set_aggregation_dim_size(model: torch.nn.Module, size: int) -> None:
    """Tell all aggregations of a model how many groups there are, where a call does not say so.

    Args:
        model: Holds them at any depth; layers of message passing know theirs, which is the number of nodes.
        size: Groups: for an aggregation of nodes, the graphs of a batch, padding included.
    """
    if size < 1:
        raise ValueError(f"set_aggregation_dim_size: size must be at least 1, got {size}")
    layers = {
        id(part) for layer in model.modules() if isinstance(layer, torch_geometric.nn.MessagePassing)
        for part in layer.modules()
    }
    for module in model.modules():
        if isinstance(module, Aggregation) and id(module) not in layers:
            setattr(module, DIM_SIZE, size)


def override() -> None:
    """Put the functions in place of torch_geometric's, once for the process."""
    if getattr(Aggregation.__call__, "_is_override", False):
        return
    utils = torch_geometric.utils
    watch_layers()
    in_modules, everywhere = self_loops.replacements()
    for module, name, made in in_modules:
        _method(importlib.import_module(f"torch_geometric.{module}"), name, made)
    for methods in (relations, kinds_of_nodes, negative_edges, refusals):
        for owner, name, made in methods.methods():
            _method(owner, name, made)
    _method(Aggregation, "__call__", _aggregate)
    _method(Aggregation, "assert_sorted_index", _assert_sorted_index)
    _method(torch_geometric.nn.GPSConv, "forward", attention.attend)
    _method(torch_geometric.nn.PANConv, "forward", path_counts.convolve)
    for norm in (torch_geometric.nn.GraphNorm, torch_geometric.nn.InstanceNorm, torch_geometric.nn.LayerNorm):
        _method(norm, "forward", _normalise)
    _everywhere({
        utils.num_nodes.maybe_num_nodes: _maybe_num_nodes, utils.scatter: _scatter, utils.segment: _segment,
        utils.softmax: _softmax, utils.to_dense_batch: _to_dense_batch,
        **everywhere, **relations.functions(), **neighbours.functions(), **negative_edges.functions(),
        **refusals.functions(),
    })


# ---------------------------------------------------------------------- putting in place
def _on_ipu_only(original: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is the original outside captured models."""
    @functools.wraps(original)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if poptorch.isRunningOnIpu():
            return made(original, *args, **kwargs)
        return original(*args, **kwargs)

    chosen._is_override = True  # type: ignore[attr-defined]
    return chosen


def _everywhere(made_by_original: dict[Callable[..., Any], Callable[..., Any]]) -> None:
    """Replace functions wherever they have been imported by name: a model's own module may have done so before."""
    chosen = {id(original): _on_ipu_only(original, made) for original, made in made_by_original.items()}
    for module in list(sys.modules.values()):
        for key, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in chosen:
                setattr(module, key, chosen[id(value)])


def _method(of: Any, name: str, made: Callable[..., Any]) -> None:
    setattr(of, name, _on_ipu_only(getattr(of, name), made))


# ---------------------------------------------------------------------- sizes
def _count_of(index: Any, what: str, argument: str) -> int:
    """Return how many values an index has.

    Raises:
        Error: Nothing tells it.
    """
    found = known_count(index)
    if found is None:
        raise createPoptorchError(
            f"{what}: how many nodes or graphs its index numbers is not known before the program runs. Give "
            f"{argument}, pass the batch that the index is of to forward as it is, or call "
            "poptorch_geometric.set_aggregation_dim_size(model, num_graphs)"
        )
    return found


def _maybe_num_nodes(original: Callable[..., Any], edge_index: Any, num_nodes: int | None = None) -> Any:
    if num_nodes is None and type(edge_index) is not torch_geometric.EdgeIndex and isinstance(edge_index, torch.Tensor):
        num_nodes = _count_of(edge_index, "torch_geometric", "num_nodes=")
    return original(edge_index, num_nodes)


def _scatter(
    original: Callable[..., Any], src: torch.Tensor, index: torch.Tensor, dim: int = 0, dim_size: int | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    if dim_size is None:
        dim_size = _count_of(index, "torch_geometric.utils.scatter", "dim_size= (or size=)")
    return original(src, index, dim, dim_size, reduce)


def _normalise(
    original: Callable[..., Any], self: Any, x: torch.Tensor, batch: torch.Tensor | None = None,
    batch_size: int | None = None,
) -> torch.Tensor:
    if batch is not None and batch_size is None:
        batch_size = _count_of(batch, type(self).__name__, "batch_size=")
    return original(self, x, batch, batch_size)


def _to_dense_batch(
    original: Callable[..., Any], x: torch.Tensor, batch: torch.Tensor | None = None, fill_value: float = 0.0,
    max_num_nodes: int | None = None, batch_size: int | None = None,
) -> Any:
    if batch is not None and max_num_nodes is None:
        raise createPoptorchError(
            "torch_geometric.utils.to_dense_batch: how many nodes the largest graph has is not known before the "
            "program runs. Give max_num_nodes=, or max_num_elements= to the aggregation that calls it"
        )
    if batch is not None and batch_size is None:
        batch_size = _count_of(batch, "torch_geometric.utils.to_dense_batch", "batch_size=")
    return original(x, batch, fill_value, max_num_nodes, batch_size)


def _aggregate(
    original: Callable[..., Any], self: Aggregation, x: torch.Tensor, index: torch.Tensor | None = None,
    ptr: torch.Tensor | None = None, dim_size: int | None = None, dim: int = -2, **kwargs: Any,
) -> torch.Tensor:
    """Aggregate into a number of groups that is known, without the edges that mean nothing."""
    if index is None and ptr is not None:
        index, dim_size, ptr = _index_of(ptr, x.shape[dim]), ptr.numel() - 1, None
    if index is None:
        return original(self, x, torch.zeros(x.shape[dim], dtype=torch.long, device=x.device), None, 1, dim, **kwargs)
    if dim_size is None and ptr is None:
        dim_size = getattr(self, DIM_SIZE, None) or _count_of(index, type(self).__name__, "dim_size=")
    void = taken_void(index, is_sum=type(self) is SumAggregation)
    if void is None or dim_size is None:
        return original(self, x, index, ptr, dim_size, dim, **kwargs)
    return original(self, x, torch.where(void, dim_size, index), None, dim_size + 1, dim, **kwargs).narrow(
        dim, 0, dim_size
    )


def _assert_sorted_index(original: Callable[..., Any], self: Aggregation, index: torch.Tensor | None) -> None:
    """Trust that the nodes of a graph lie together, as a batch has them: values are not known at capture."""


# ---------------------------------------------------------------------- segments
def _index_of(ptr: torch.Tensor, length: int) -> torch.Tensor:
    """Return the segment of each row ``[length]`` from where segments begin ``[segments + 1]``."""
    begins = torch.zeros(length + 1, dtype=torch.long, device=ptr.device)
    # Segments that begin behind the last row are empty: they are counted in the row that is cut off.
    return begins.scatter_add(0, ptr[1:-1].long(), ptr.new_ones(len(ptr) - 2, dtype=torch.long)).cumsum(0)[:length]


def _segment(original: Callable[..., Any], src: torch.Tensor, ptr: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
    dim = ptr.dim() - 1
    flat = ptr.reshape(-1)
    return torch_geometric.utils.scatter(src, _index_of(flat, src.shape[dim]), dim, flat.numel() - 1, reduce)


def _softmax(
    original: Callable[..., Any], src: torch.Tensor, index: torch.Tensor | None = None,
    ptr: torch.Tensor | None = None, num_nodes: int | None = None, dim: int = 0,
) -> torch.Tensor:
    if ptr is not None and index is None:
        flat = ptr.reshape(-1)
        index, num_nodes = _index_of(flat, src.shape[dim]), flat.numel() - 1
    if index is not None and num_nodes is None:
        num_nodes = _count_of(index, "torch_geometric.utils.softmax", "num_nodes=")
    void = taken_void(index, keep=True)
    if void is None or index is None or num_nodes is None:
        return original(src, index, None, num_nodes, dim)
    return original(src, torch.where(void, num_nodes, index), None, num_nodes + 1, dim)
