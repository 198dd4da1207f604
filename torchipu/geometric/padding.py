"""A graph of padding: what a batch lacks to its fixed size, with attributes like those of the real graphs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch_geometric.data import HeteroData
from torch_geometric.data.data import BaseData
from torch_geometric.data.storage import BaseStorage, EdgeStorage, NodeStorage

from torchipu.geometric.fixed_size_options import FixedSizeOptions, Values

NODE, EDGE, GRAPH = "node", "edge", "graph"
OF_NODES = ("x", "pos", "z")
"""Names by which torch_geometric calls what belongs to nodes."""


def kinds_of(graphs: Sequence[BaseData]) -> dict[tuple[Any, str], str]:
    """Return what each tensor of graphs belongs to: nodes, edges or graphs, by type and name.

    An attribute belongs to nodes if it has as many rows as the graph has nodes, in all graphs. So the more graphs are
    looked at, the rarer is one whose rows are as many by chance.

    Args:
        graphs: Of one data set.
    """
    found: dict[tuple[Any, str], str] = {}
    first = graphs[0]
    for place, store in enumerate(first.stores):
        for key, value in store.items():
            if isinstance(value, torch.Tensor):
                found[store._key, key] = _kind([one.stores[place] for one in graphs], key, first)
    return found


def _kind(stores: list[BaseStorage], key: str, graph: BaseData) -> str:
    values = [store[key] for store in stores]
    if key in ("edge_index", "adj", "adj_t"):
        return EDGE
    dim = graph.__cat_dim__(key, values[0], stores[0])
    if not isinstance(dim, int) or values[0].dim() == 0:
        return GRAPH
    rows = [value.shape[dim] for value in values]
    is_node = isinstance(stores[0], NodeStorage) and rows == [store.num_nodes for store in stores]
    is_edge = isinstance(stores[0], EdgeStorage) and rows == [store.num_edges for store in stores]
    if is_edge and "edge" in key:
        return EDGE
    if is_node and (key in OF_NODES or "node" in key):
        return NODE
    if set(rows) == {1}:
        return GRAPH  # every graph has one row of what belongs to it, and few have one node or one edge
    return NODE if is_node else EDGE if is_edge else GRAPH


def padding_graph(
    like: BaseData, kinds: dict[tuple[Any, str], str], options: FixedSizeOptions, num_nodes: dict[Any, int],
    num_edges: dict[Any, int],
) -> BaseData:
    """Return a graph of padding, whose edges are self-loops of its first node.

    Args:
        like: A real graph.
        kinds: What its attributes belong to.
        options: What to fill with.
        num_nodes: Nodes of each type.
        num_edges: Edges of each type.
    """
    made = copy.copy(like)
    is_hetero = isinstance(like, HeteroData)
    for store in made.stores:
        has_nodes, has_edges = isinstance(store, NodeStorage), isinstance(store, EdgeStorage)
        sizes = {
            NODE: num_nodes[store._key] if has_nodes else 0, EDGE: num_edges[store._key] if has_edges else 0,
        }
        for key, value in list(store.items()):
            if key == "num_nodes":
                store[key] = sizes[NODE]
            elif isinstance(value, torch.Tensor):
                store[key] = _filled(made, store, key, value, kinds[store._key, key], sizes, options)
            elif options.pad_graph_defaults is not None and key in options.pad_graph_defaults:
                store[key] = options.pad_graph_defaults[key]
        if not is_hetero and "num_nodes" not in store and NODE not in kinds.values():
            store["num_nodes"] = sizes[NODE]
        store.__dict__.pop("_cached_attr", None)
    return made


def _filled(
    graph: BaseData, store: BaseStorage, key: str, value: torch.Tensor, kind: str, sizes: dict[str, int],
    options: FixedSizeOptions,
) -> torch.Tensor:
    """Return an attribute of padding."""
    if kind == GRAPH:
        return torch.full_like(value, _value(options.graph_pad_value, key))
    shape = list(value.shape)
    shape[graph.__cat_dim__(key, value, store)] = sizes[kind]
    # Indices of nodes count within the graph: its first node is the only one that every graph of padding has.
    is_index = key == "edge_index" or bool(graph.__inc__(key, value, store))
    filling = 0 if is_index else _value(options.node_pad_value if kind == NODE else options.edge_pad_value, key)
    return value.new_full(shape, filling)


def _value(values: Values, key: str) -> float:
    return values.get(key, 0.0) if isinstance(values, dict) else values
