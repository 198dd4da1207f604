"""Layers that torch_geometric writes by picking the nodes of a kind: all nodes pass through each, and one is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch_geometric.nn
from torch_geometric.nn.norm import HeteroBatchNorm
from torch_geometric.utils import degree, scatter

Replacement = Callable[..., Any]
"""Takes the original and its arguments."""


def methods() -> list[tuple[Any, str, Replacement]]:
    """Return what takes the place of methods of torch_geometric: by class and name."""
    return [
        (torch_geometric.nn.MFConv, "forward", _by_degree),
        (torch_geometric.nn.HeteroLinear, "forward", _by_type),
        (torch_geometric.nn.MaskLabel, "forward", _by_mask),
        (HeteroBatchNorm, "forward", _normalised_by_type),
    ]


def _taken(kind: torch.Tensor, made: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return for each node ``[N]`` the row that was made for its kind, of one tensor ``[N, F]`` for each kind."""
    out: torch.Tensor | None = None
    for number, rows in enumerate(made):
        of_kind = (kind == number).unsqueeze(-1)
        out = torch.where(of_kind, rows, 0 if out is None else out)
    assert out is not None
    return out


def _by_degree(
    original: Callable[..., Any], self: Any, x: Any, edge_index: torch.Tensor, size: Any = None,
) -> torch.Tensor:
    """`MFConv.forward`: weights for each degree."""
    x = (x, x) if isinstance(x, torch.Tensor) else x
    count = size[1] if size is not None and x[1] is None else x[0 if x[1] is None else 1].size(self.node_dim)
    ends = edge_index[1 if self.flow == "source_to_target" else 0]
    degrees = degree(ends, count, dtype=torch.long).clamp(max=self.max_degree)
    h = self.propagate(edge_index, x=x, size=size)
    pairs = zip(self.lins_l, self.lins_r, strict=True)
    return _taken(degrees, (own(h) if x[1] is None else own(h) + other(x[1]) for own, other in pairs))


def _by_type(original: Callable[..., Any], self: Any, x: torch.Tensor, type_vec: torch.Tensor) -> torch.Tensor:
    """`HeteroLinear.forward`: weights for each type."""
    out = _taken(type_vec, (x @ weight for weight in self.weight))
    return out if self.bias is None else out + self.bias[type_vec]


def _by_mask(
    original: Callable[..., Any], self: Any, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor,
) -> torch.Tensor:
    """`MaskLabel.forward`: an embedding of the labels that are known; others need not be classes."""
    known = self.emb(torch.where(mask, y, 0)) * mask.unsqueeze(-1)
    return torch.cat([x, known], dim=-1) if self.method == "concat" else x + known


def _normalised_by_type(
    original: Callable[..., Any], self: Any, x: torch.Tensor, type_vec: torch.Tensor,
) -> torch.Tensor:
    """`HeteroBatchNorm.forward`: running statistics change for the types that a batch has."""
    if not self.training or not self.track_running_stats or self.momentum is None:
        return original(self, x, type_vec)
    with torch.no_grad():
        mean, var = self.mean_var(x, type_vec, dim_size=self.num_types)
        present = scatter(torch.ones_like(type_vec), type_vec, 0, self.num_types, "sum").unsqueeze(-1) > 0
        for running, found in ((self.running_mean, mean), (self.running_var, var)):
            running.copy_(torch.where(present, (1.0 - self.momentum) * running + self.momentum * found, running))
    out = (x - mean[type_vec]) / var.clamp(self.eps).sqrt()[type_vec]
    return out * self.weight[type_vec] + self.bias[type_vec] if self.affine else out
