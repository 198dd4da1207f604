"""Sizes that PyTorch Geometric would read from an index, where a batch tells them: graphs, and nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import HeteroData
from torch_geometric.data.data import BaseData

_COUNTS: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""For an index that came with a batch, how many values it may have."""


def note_sizes(data: BaseData) -> None:
    """Remember how many graphs and nodes the indices of a batch count.

    Args:
        data: A batch as ``forward`` sees it.
    """
    num_graphs = getattr(data, "_num_graphs", None)
    for store in data.stores:
        if num_graphs is not None and isinstance(index := store.get("batch"), torch.Tensor):
            _COUNTS[index] = num_graphs
        if not isinstance(data, HeteroData) and isinstance(edges := store.get("edge_index"), torch.Tensor):
            num_nodes = data.num_nodes
            if num_nodes is not None:
                _COUNTS[edges] = num_nodes


def known_count(index: Any) -> int | None:
    """Return how many values an index may have, if that is known.

    Args:
        index: A tensor that numbers graphs or nodes.
    """
    return _COUNTS.get(index) if isinstance(index, torch.Tensor) else None
