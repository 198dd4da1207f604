"""`FixedSizeOptions`: how many nodes, edges and graphs every batch has, and with what the rest is filled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch_geometric.data import HeteroData
from torch_geometric.data.data import BaseData

Sizes = int | dict[Any, int]
Values = float | dict[Any, float]
"""One for all, or by type of node or edge where these have several."""


@dataclass
class FixedSizeOptions:
    """Size of every batch, padding included.

    Attributes:
        num_nodes: Nodes; by type of node for graphs that have several.
        num_edges: Edges; by type. None for those of a graph in which every node has an edge to every other.
        num_graphs: Graphs; at least 2, as one is what the padding is made of.
        node_pad_value: Of all that belongs to nodes; or by name of the attribute.
        edge_pad_value: Of all that belongs to edges; or by name.
        graph_pad_value: Of all that belongs to graphs; or by name.
        pad_graph_defaults: Values that graphs of padding have for attributes that are no tensors, by name; those that
            it does not name are the first graph's.

    Raises:
        ValueError: A size is not above 0, or there is no room for a graph of padding.
    """

    num_nodes: Sizes
    num_edges: Sizes | None = None
    num_graphs: int = 2
    node_pad_value: Values = 0.0
    edge_pad_value: Values = 0.0
    graph_pad_value: Values = 0.0
    pad_graph_defaults: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.num_edges is None:
            if isinstance(self.num_nodes, dict):
                raise ValueError("FixedSizeOptions: num_nodes is given by type, so num_edges has to be too")
            self.num_edges = self.num_nodes * (self.num_nodes - 1)
        for name, value in (("num_nodes", self.num_nodes), ("num_edges", self.num_edges)):
            for size in value.values() if isinstance(value, dict) else (value,):
                if size < 1:
                    raise ValueError(f"FixedSizeOptions: {name} must be at least 1, got {value}")
        if self.num_graphs < 2:
            raise ValueError(
                f"FixedSizeOptions: num_graphs must be at least 2, as one is that of the padding; got {self.num_graphs}"
            )

    @property
    def total_num_nodes(self) -> int:
        """Nodes of all types."""
        return _total(self.num_nodes)

    @property
    def total_num_edges(self) -> int:
        """Edges of all types."""
        assert self.num_edges is not None
        return _total(self.num_edges)

    def is_hetero(self) -> bool:
        """Whether sizes are given by type."""
        return isinstance(self.num_nodes, dict) or isinstance(self.num_edges, dict)

    def nodes_of(self, kind: Any) -> int:
        """Return the nodes of a type; None for graphs without types."""
        return self._size("num_nodes", self.num_nodes, kind)

    def edges_of(self, kind: Any) -> int:
        """Return the edges of a type; None for graphs without types."""
        assert self.num_edges is not None
        return self._size("num_edges", self.num_edges, kind)

    def _size(self, name: str, sizes: Sizes, kind: Any) -> int:
        if not isinstance(sizes, dict):
            return sizes
        if kind not in sizes:
            raise ValueError(f"FixedSizeOptions: {name} has no size for {kind!r}; it has {sorted(map(str, sizes))}")
        return sizes[kind]

    @classmethod
    def from_dataset(
        cls, dataset: Sequence[BaseData], batch_size: int, sample_limit: int | None = None,
        progress_bar: bool | None = None,
    ) -> Self:
        """Return the least size that every batch of a data set fits, whichever graphs it is made of.

        Args:
            dataset: Graphs.
            batch_size: Graphs of a batch, with that of the padding, as `num_graphs` counts them.
            sample_limit: Look at that many graphs only; None for all.
            progress_bar: Taken as PopTorch Geometric does; nothing is shown.
        """
        del progress_bar
        count = len(dataset) if sample_limit is None else min(sample_limit, len(dataset))
        sizes = [_sizes(dataset[index]) for index in range(count)]
        if not sizes:
            raise ValueError("FixedSizeOptions.from_dataset: the data set is empty")
        num_graphs = max(batch_size, 2)
        nodes, edges = (_largest([one[end] for one in sizes], num_graphs - 1) for end in (0, 1))
        return cls._of(nodes, edges, num_graphs)

    @classmethod
    def from_loader(cls, loader: Iterable[BaseData], sample_limit: int | None = None) -> Self:
        """Return a size that every batch of a loader fits, of those that it yields now.

        Args:
            loader: Yields batches, or parts of one graph.
            sample_limit: Look at that many only; None for all.
        """
        sizes, num_graphs = [], 1
        for index, batch in enumerate(loader):
            if index == sample_limit:
                break
            sizes.append(_sizes(batch))
            num_graphs = max(num_graphs, getattr(batch, "num_graphs", 1))
        if not sizes:
            raise ValueError("FixedSizeOptions.from_loader: the loader yields nothing")
        nodes, edges = (_largest([one[end] for one in sizes], 1) for end in (0, 1))
        return cls._of(nodes, edges, num_graphs + 1)

    @classmethod
    def _of(cls, nodes: dict[Any, int], edges: dict[Any, int], num_graphs: int) -> Self:
        return cls(nodes[None], edges[None], num_graphs) if None in nodes else cls(nodes, edges, num_graphs)


def _sizes(data: BaseData) -> tuple[dict[Any, int], dict[Any, int]]:
    """Return the nodes and the edges of a graph by type; None for the only one."""
    if isinstance(data, HeteroData):
        return (
            {kind: data[kind].num_nodes for kind in data.node_types},
            {kind: data[kind].num_edges for kind in data.edge_types},
        )
    return {None: data.num_nodes}, {None: data.num_edges}


def _largest(sizes: Sequence[dict[Any, int]], count: int) -> dict[Any, int]:
    """Return what the largest graphs of each type have together, and one more for the padding, by type."""
    kinds = dict.fromkeys(kind for one in sizes for kind in one)
    return {kind: sum(sorted((one.get(kind, 0) for one in sizes), reverse=True)[:count]) + 1 for kind in kinds}


def _total(sizes: Sizes) -> int:
    return sum(sizes.values()) if isinstance(sizes, dict) else sizes
