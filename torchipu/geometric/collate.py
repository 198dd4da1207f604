"""Collaters: from lists of graphs to batches of one size, and to the batches of a whole call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch_geometric.data import Batch, HeteroData
from torch_geometric.data.data import BaseData

from torchipu.geometric.fixed_size_options import FixedSizeOptions
from torchipu.geometric.known_sizes import note_sizes
from torchipu.geometric.padding import GRAPH, kinds_of, padding_graph
from torchipu.geometric.trimming import trim_edges, trim_nodes
from torchipu.poptorch.data.samplers import concatenate


def make_exclude_keys(include_keys: Sequence[str], data: BaseData) -> list[str]:
    """Return the names of a graph's attributes that are not among those to keep.

    Args:
        include_keys: Those to keep.
        data: A graph.
    """
    return [key for key in data.to_dict() if key not in include_keys]


class FixedSizeCollater:
    """Makes batches of one size of lists of graphs, by a graph of padding behind them.

    Args:
        fixed_size_options: The size.
        add_masks_to_batch: Add ``nodes_mask`` ``[N]``, ``edges_mask`` ``[E]`` and ``graphs_mask`` ``[G]``, true where
            there is no padding; of graphs with types, one in each of them.
        trim_nodes: Leave out nodes, and their edges, of batches that have too many; those of the last graph go first.
        trim_edges: The same for edges.
        follow_batch: Attributes to number by graph, as of torch_geometric's loader.
        exclude_keys: Attributes to leave out.

    Raises:
        ValueError: In a call: a batch has more nodes, edges or graphs than its size has room for.
    """

    def __init__(
        self, fixed_size_options: FixedSizeOptions, add_masks_to_batch: bool = False, trim_nodes: bool = False,
        trim_edges: bool = False, follow_batch: Sequence[str] | None = None, exclude_keys: Sequence[str] | None = None,
    ) -> None:
        self.fixed_size_options = fixed_size_options
        self.add_masks_to_batch = add_masks_to_batch
        self.trim_nodes, self.trim_edges = trim_nodes, trim_edges
        self.follow_batch = list(follow_batch or [])
        self.exclude_keys = list(exclude_keys or [])

    def __call__(self, data_list: Sequence[BaseData]) -> Batch:
        """Return a batch of a list of graphs."""
        options = self.fixed_size_options
        if not isinstance(data_list, Sequence) or not all(isinstance(one, BaseData) for one in data_list):
            raise TypeError(f"FixedSizeCollater makes batches of lists of graphs, got {type(data_list).__name__}")
        num_padding = options.num_graphs - len(data_list)
        if num_padding < 1:
            raise ValueError(
                f"FixedSizeCollater: num_graphs={options.num_graphs} has room for {options.num_graphs - 1} graphs and "
                f"one of padding, got {len(data_list)}: make the batches smaller or num_graphs larger"
            )
        graphs = self._within_size(list(data_list))
        kinds = kinds_of(graphs)
        nodes, edges = _counts(graphs)
        spare_nodes = {kind: options.nodes_of(kind) - count for kind, count in nodes.items()}
        spare_edges = {kind: options.edges_of(kind) - count for kind, count in edges.items()}
        none = dict.fromkeys(spare_nodes, 0), dict.fromkeys(spare_edges, 0)
        padding = [padding_graph(graphs[0], kinds, options, spare_nodes, spare_edges)]
        padding += [padding_graph(graphs[0], kinds, options, *none) for _ in range(num_padding - 1)]
        batch = Batch.from_data_list(
            [*graphs, *padding], follow_batch=self.follow_batch, exclude_keys=self.exclude_keys
        )
        if self.add_masks_to_batch:
            self._add_masks(batch, len(data_list), nodes, edges)
        self._check(batch, kinds)
        note_sizes(batch)
        return batch

    def _within_size(self, graphs: list[BaseData]) -> list[BaseData]:
        """Return graphs that leave room for padding; the last ones are trimmed where that is allowed."""
        options = self.fixed_size_options
        nodes = _counts(graphs)[0]
        for kind, count in nodes.items():
            # A node is left to the padding: its edges have to end somewhere.
            excess = count - (options.nodes_of(kind) - 1)
            if excess > 0 and not self.trim_nodes:
                room = options.nodes_of(kind) - 1
                raise _too_large("num_nodes", kind, count, room, "TrimNodes", " and one of padding")
            graphs = _trimmed(graphs, kind, excess, _num_nodes, trim_nodes, least=1)
        for kind, count in _counts(graphs)[1].items():
            excess = count - options.edges_of(kind)
            if excess > 0 and not self.trim_edges:
                raise _too_large("num_edges", kind, count, options.edges_of(kind), "TrimEdges", "")
            graphs = _trimmed(graphs, kind, excess, _num_edges, trim_edges, least=0)
        return graphs

    def _add_masks(self, batch: Batch, num_graphs: int, nodes: dict[Any, int], edges: dict[Any, int]) -> None:
        options = self.fixed_size_options
        for kind, count in nodes.items():
            store = batch if kind is None else batch[kind]
            store.nodes_mask = torch.arange(options.nodes_of(kind)) < count
        for kind, count in edges.items():
            store = batch if kind is None else batch[kind]
            store.edges_mask = torch.arange(options.edges_of(kind)) < count
        batch.graphs_mask = torch.arange(options.num_graphs) < num_graphs

    def _check(self, batch: Batch, kinds: dict[tuple[Any, str], str]) -> None:
        """Raise ValueError where a batch has another size, as an attribute may have it that nothing counts."""
        nodes, edges = _counts([batch])
        for name, counts, size_of in (
            ("nodes", nodes, self.fixed_size_options.nodes_of), ("edges", edges, self.fixed_size_options.edges_of)
        ):
            for kind, count in counts.items():
                if count != size_of(kind):
                    of_graphs = sorted(key for (_, key), found in kinds.items() if found == GRAPH)
                    raise ValueError(
                        f"FixedSizeCollater: the batch has {count} {name}, expected {size_of(kind)}: an attribute that "
                        f"has as many rows in some graphs only is taken for one of graphs; those are {of_graphs}"
                    )


class CombinedBatchingCollater:
    """Makes the batch of a whole call: batches of one size behind one another, along their first dimension.

    Args:
        mini_batch_size: Graphs of each batch.
        collater: Makes a batch of a list of graphs.
    """

    def __init__(self, mini_batch_size: int, collater: Callable[[Sequence[Any]], Any]) -> None:
        self.mini_batch_size = mini_batch_size
        self.collater = collater

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Return the batch of a call."""
        size = self.mini_batch_size
        return concatenate([self.collater(batch[begin:begin + size]) for begin in range(0, len(batch), size)])


class TupleCollater:
    """Makes tuples of the tensors of a batch, for models that take those.

    Args:
        include_keys: Names of the attributes, in the order of the tuple.
        collater: Makes a batch of a list of graphs; None for one of torch_geometric.
    """

    def __init__(
        self, include_keys: Sequence[str], collater: Callable[[Sequence[BaseData]], Any] | None = None
    ) -> None:
        self.include_keys = tuple(include_keys)
        self.collater = collater or Batch.from_data_list

    def __call__(self, data_list: Sequence[BaseData]) -> tuple[Any, ...]:
        """Return the tensors of a batch.

        Raises:
            KeyError: It has none of that name.
        """
        batch = self.collater(data_list)
        missing = [key for key in self.include_keys if key not in batch]
        if missing:
            there = ", ".join(sorted(batch.to_dict()))
            raise KeyError(f"TupleCollater: a batch has no {', '.join(missing)}; it has {there}")
        return tuple(batch[key] for key in self.include_keys)


def _counts(graphs: Sequence[BaseData]) -> tuple[dict[Any, int], dict[Any, int]]:
    """Return the nodes and the edges of graphs by type; None for graphs without types."""
    first = graphs[0]
    node_kinds = first.node_types if isinstance(first, HeteroData) else [None]
    edge_kinds = first.edge_types if isinstance(first, HeteroData) else [None]
    return (
        {kind: sum(_num_nodes(one, kind) for one in graphs) for kind in node_kinds},
        {kind: sum(_num_edges(one, kind) for one in graphs) for kind in edge_kinds},
    )


def _num_nodes(graph: BaseData, kind: Any) -> int:
    return int((graph if kind is None else graph[kind]).num_nodes)


def _num_edges(graph: BaseData, kind: Any) -> int:
    return int((graph if kind is None else graph[kind]).num_edges)


def _trimmed(
    graphs: list[BaseData], kind: Any, excess: int, count_of: Callable[[BaseData, Any], int],
    trim: Callable[[BaseData, Any, int], BaseData], least: int,
) -> list[BaseData]:
    """Return graphs with ``excess`` nodes or edges fewer, the last ones trimmed first and each down to ``least``."""
    graphs = list(graphs)
    for place in reversed(range(len(graphs))):
        count = count_of(graphs[place], kind)
        taken = min(max(count - least, 0), max(excess, 0))
        if taken:
            graphs[place] = trim(graphs[place], kind, count - taken)
            excess -= taken
    if excess > 0:
        raise ValueError(f"FixedSizeCollater: {len(graphs)} graphs have no room even if all are trimmed to {least}")
    return graphs


def _too_large(name: str, kind: Any, count: int, room: int, strategy: str, more: str) -> ValueError:
    of_kind = "" if kind is None else f" of type {kind}"
    return ValueError(
        f"FixedSizeCollater: the batch has {count} {name.removeprefix('num_')}{of_kind}, and {name} has room for "
        f"{room}{more}: make it larger, the batch smaller, or use OverSizeStrategy.{strategy}"
    )
