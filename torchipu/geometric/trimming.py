"""Leaves out nodes or edges of graphs that are larger than a batch may be."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import HeteroData
from torch_geometric.data.data import BaseData


def trim_nodes(data: BaseData, kind: Any, count: int) -> BaseData:
    """Return a graph with its first nodes of a type, and the edges between those.

    Args:
        data: The graph; it stays as it is.
        kind: Type of the nodes; None for graphs without types.
        count: Nodes to keep.
    """
    num_nodes = data[kind].num_nodes if isinstance(data, HeteroData) else data.num_nodes
    if num_nodes is None or num_nodes <= count:
        return data
    kept = torch.arange(count)
    return data.subgraph({kind: kept}) if isinstance(data, HeteroData) else data.subgraph(kept)


def trim_edges(data: BaseData, kind: Any, count: int) -> BaseData:
    """Return a graph with some of its edges of a type, drawn by torch's generator, in their order.

    Args:
        data: The graph; it stays as it is.
        kind: Type of the edges; None for graphs without types.
        count: Edges to keep.
    """
    num_edges = data[kind].num_edges if isinstance(data, HeteroData) else data.num_edges
    if num_edges <= count:
        return data
    kept = torch.randperm(num_edges)[:count].sort().values
    return data.edge_subgraph({kind: kept}) if isinstance(data, HeteroData) else data.edge_subgraph(kept)
