"""Self-loops in graphs of a fixed number of edges: one for each node behind the others, and what is removed is void."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn.conv.gcn_conv as gcn_conv
import torch_geometric.utils
from torch_geometric.utils import scatter

from torchipu.geometric.known_sizes import known_count
from torchipu.geometric.void_edges import mark_void, void_of, weightless_of
from torchipu.poptorch.poptorch_core import createPoptorchError

LAYERS = (
    "agnn_conv", "feast_conv", "gat_conv", "gatv2_conv", "point_conv", "point_transformer_conv", "ppf_conv",
    "supergat_conv",
)
"""Modules of layers that use their edges for messages alone: those that mean nothing can be skipped."""
Edges = tuple[torch.Tensor, torch.Tensor | None]
Replacement = Callable[..., Any]
"""Takes the original and its arguments."""


def replacements() -> tuple[list[tuple[str, str, Replacement]], dict[Callable[..., Any], Replacement]]:
    """Return what takes the place of torch_geometric's functions: by module and name, and wherever they are known."""
    # A weight of zero takes an edge out of everything that is computed from weights.
    in_modules: list[tuple[str, str, Replacement]] = [
        ("nn.conv.gcn_conv", "add_remaining_self_loops", _add_remaining_self_loops),
        ("nn.conv.eg_conv", "add_remaining_self_loops", _add_remaining_as_void),
        ("utils.laplacian", "remove_self_loops", _remove_by_weight),
    ]
    for layer in LAYERS:
        in_modules += [
            (f"nn.conv.{layer}", "remove_self_loops", _remove_as_void),
            (f"nn.conv.{layer}", "add_self_loops", _add_behind_void),
        ]
    return in_modules, {
        gcn_conv.gcn_norm: _gcn_norm,
        torch_geometric.utils.remove_self_loops: _refused,
        torch_geometric.utils.add_remaining_self_loops: _refused,
    }


def _refused(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise createPoptorchError(
        f"{original.__name__}: how many edges are left is not known before the program runs. Give the layer "
        "add_self_loops=False, and add self-loops to the data, with "
        "torch_geometric.transforms.AddRemainingSelfLoops()"
    )


def _is_loop(edge_index: torch.Tensor) -> torch.Tensor:
    return edge_index[0] == edge_index[1]


# ---------------------------------------------------------------------- by weight
def _gcn_norm(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Normalise, with weights in the type of the features although those of self-loops have been made before."""
    edges = args[0] if args else kwargs["edge_index"]
    void = void_of(edges) if isinstance(edges, torch.Tensor) else None
    if void is not None:
        args, kwargs = _without_void(edges, void, *args, **kwargs)
    edge_index, weight = original(*args, **kwargs)
    dtype = kwargs.get("dtype", args[6] if len(args) > 6 else None)
    return edge_index, weight if weight is None or dtype is None else weight.to(dtype)


def _without_void(
    edges: torch.Tensor, void: torch.Tensor, edge_index: Any, edge_weight: Any = None, num_nodes: Any = None,
    *args: Any, **kwargs: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments of `gcn_norm` with a weight of zero for edges that mean nothing, which then need no mark."""
    weight = torch.ones(edges.shape[1], device=edges.device) if edge_weight is None else edge_weight
    made = edges.clone()
    mark_void(made, void, is_weightless=True)
    return (made, weight.masked_fill(void, 0), num_nodes, *args), kwargs


def _add_remaining_self_loops(
    original: Callable[..., Any], edge_index: torch.Tensor, edge_attr: torch.Tensor | None = None,
    fill_value: Any = None, num_nodes: int | None = None,
) -> Edges:
    """Add a self-loop to each node, with the weight of the one that it has, whose own weight becomes zero."""
    assert num_nodes is not None
    is_loop = _is_loop(edge_index)
    weightless = weightless_of(edge_index)
    fill = 1.0 if fill_value is None else fill_value
    if edge_attr is None:
        # Without weights gcn_norm gives every edge one, whatever it asked the self-loops to be filled with.
        edge_attr, fill = torch.ones(edge_index.shape[1], device=edge_index.device), 1.0
    loops = torch.full((num_nodes + 1,), fill, dtype=edge_attr.dtype, device=edge_index.device)
    # A self-loop that means nothing has no weight to keep.
    kept = is_loop if weightless is None else is_loop & ~weightless
    loops = loops.scatter(0, torch.where(kept, edge_index[0], num_nodes), edge_attr)[:num_nodes]
    weights = torch.cat([edge_attr.masked_fill(is_loop, 0), loops])
    made = _with_loops(edge_index, num_nodes)
    weightless = is_loop if weightless is None else is_loop | weightless
    mark_void(made, torch.cat([weightless, torch.zeros_like(loops, dtype=torch.bool)]), is_weightless=True)
    return made, weights


def _remove_by_weight(
    original: Callable[..., Any], edge_index: torch.Tensor, edge_attr: torch.Tensor | None = None
) -> Edges:
    """Give self-loops a weight of zero."""
    if edge_attr is None:
        edge_attr = torch.ones(edge_index.shape[1], device=edge_index.device)
    return edge_index, edge_attr.masked_fill(_is_loop(edge_index), 0)


# ---------------------------------------------------------------------- as edges that mean nothing
def _add_remaining_as_void(original: Callable[..., Any], edge_index: torch.Tensor) -> Edges:
    """Add a self-loop to each node behind those of the graph, which mean nothing.

    Without a number of nodes torch_geometric gives none to those behind the last that has an edge.
    """
    num_nodes = known_count(edge_index)
    if num_nodes is None:
        return _refused(original)
    void, is_loop = void_of(edge_index), _is_loop(edge_index)
    made = _with_loops(edge_index, num_nodes)
    behind = torch.arange(num_nodes, device=edge_index.device) > edge_index.max()
    mark_void(made, torch.cat([is_loop if void is None else void | is_loop, behind]))
    return made, None


def _remove_as_void(
    original: Callable[..., Any], edge_index: torch.Tensor, edge_attr: torch.Tensor | None = None
) -> Edges:
    """Mark self-loops as edges that mean nothing."""
    kept, void, is_loop = edge_index.clone(), void_of(edge_index), _is_loop(edge_index)
    mark_void(kept, is_loop if void is None else void | is_loop)
    return kept, edge_attr


def _add_behind_void(
    original: Callable[..., Any], edge_index: torch.Tensor, edge_attr: torch.Tensor | None = None,
    fill_value: Any = None, num_nodes: Any = None,
) -> Edges:
    """Add a self-loop to each node behind edges of which some mean nothing."""
    void = void_of(edge_index)
    if void is None or num_nodes is None:
        return original(edge_index, edge_attr, fill_value, num_nodes)
    count = min(num_nodes) if isinstance(num_nodes, tuple) else num_nodes
    made = _with_loops(edge_index, count)
    mark_void(made, torch.cat([void, torch.zeros(count, dtype=torch.bool, device=void.device)]))
    if edge_attr is None:
        return made, None
    return made, torch.cat([edge_attr, _loop_attr(edge_index, edge_attr, void, fill_value, count)])


def _loop_attr(
    edge_index: torch.Tensor, edge_attr: torch.Tensor, void: torch.Tensor, fill_value: Any, num_nodes: int
) -> torch.Tensor:
    """Return the attributes of the self-loops: a value, or what is made of those of the edges that end in a node."""
    shape = (num_nodes, *edge_attr.shape[1:])
    if isinstance(fill_value, str):
        ends = torch.where(void, num_nodes, edge_index[1])
        return scatter(edge_attr, ends, 0, num_nodes + 1, fill_value)[:num_nodes]
    if isinstance(fill_value, torch.Tensor):
        return fill_value.to(edge_attr.dtype).expand(shape)
    return edge_attr.new_full(shape, 1.0 if fill_value is None else fill_value)


def _with_loops(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    loops = torch.arange(num_nodes, dtype=edge_index.dtype, device=edge_index.device)
    return torch.cat([edge_index, loops.expand(2, -1)], dim=1)
