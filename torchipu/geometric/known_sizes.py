"""Sizes that PyTorch Geometric would read from an index, where a batch tells them: graphs, and nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import HeteroData
from torch_geometric.data.data import BaseData

from torchipu import poptorch
from torchipu.poptorch.poptorch_core import Error

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


def note_count(index: torch.Tensor, count: int) -> None:
    """Remember how many values an index may have, unless that is known already.

    Args:
        index: A tensor that numbers graphs or nodes.
        count: Their number.
    """
    _COUNTS.setdefault(index, count)


def takes_its_place(index: torch.Tensor, made: Any) -> None:
    """Let a tensor that takes the place of an index have as many values, as a stand-in or with more rows.

    Args:
        index: A tensor, whatever it holds.
        made: What takes its place.
    """
    if isinstance(made, torch.Tensor) and (count := _COUNTS.get(index)) is not None:
        _COUNTS[made] = count


def known_count(index: Any) -> int | None:
    """Return how many values an index may have, if that is known: a batch tells it, or the values are constants.

    Args:
        index: A tensor that numbers graphs or nodes.
    """
    if not isinstance(index, torch.Tensor):
        return None
    found = _COUNTS.get(index)
    if found is None and poptorch.isRunningOnIpu():
        try:
            found = int(index.max()) + 1 if index.numel() else 0
        except Error:
            return None
    return found
