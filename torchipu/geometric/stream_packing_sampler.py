"""Samplers that put graphs into batches by how many nodes and edges they have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Sampler, SequentialSampler
from torch_geometric.data.data import BaseData


class _Size(NamedTuple):
    nodes: int
    edges: int


class _Limits:
    """What a batch may hold.

    Args:
        data_source: The graphs.
        num_graphs: Graphs at most.
        num_nodes: Nodes at most; None for any number.
        num_edges: Edges at most; None for any number.
        allow_skip_data: Leave out graphs that no batch can hold.

    Raises:
        ValueError: A limit is not above 0.
    """

    def __init__(
        self, data_source: Sequence[BaseData], num_graphs: int, num_nodes: int | None, num_edges: int | None,
        *, allow_skip_data: bool,
    ) -> None:
        for name, value in (("graphs", num_graphs), ("nodes", num_nodes), ("edges", num_edges)):
            if value is not None and value < 1:
                raise ValueError(f"a batch must have room for at least 1 of its {name}, got {value}")
        self.data_source = data_source
        self.num_graphs = num_graphs
        self.num_nodes, self.num_edges = num_nodes, num_edges
        self.allow_skip_data = allow_skip_data
        self._sizes: dict[int, _Size] = {}

    def size(self, index: int) -> _Size:
        """Return the size of a graph, which is read once."""
        found = self._sizes.get(index)
        if found is None:
            graph = self.data_source[index]
            found = self._sizes[index] = _Size(int(graph.num_nodes), int(graph.num_edges))
        return found

    def fits(self, used: _Size, index: int) -> bool:
        """Return whether a graph fits beside what a batch has."""
        more = self.size(index)
        return (self.num_nodes is None or used.nodes + more.nodes <= self.num_nodes) and (
            self.num_edges is None or used.edges + more.edges <= self.num_edges
        )

    def takes(self, index: int) -> bool:
        """Return whether a batch can hold a graph at all.

        Raises:
            ValueError: None can, and it may not be left out.
        """
        if self.fits(_Size(0, 0), index):
            return True
        if self.allow_skip_data:
            return False
        size = self.size(index)
        raise ValueError(
            f"graph {index} has {size.nodes} nodes and {size.edges} edges, and a batch has room for {self.num_nodes} "
            f"and {self.num_edges}: make the batches larger, or leave such graphs out with allow_skip_data=True"
        )


class StreamPackingSampler(Sampler[list[int]]):
    """Yields batches of consecutive graphs, as many as fit.

    Args:
        data_source: The graphs.
        max_num_graphs: Graphs of a batch at most.
        max_num_nodes: Nodes of a batch at most; None for any number.
        max_num_edges: Edges of a batch at most; None for any number.
        base_sampler: Yields the graphs' numbers; None for their own order.
        allow_skip_data: Leave out graphs that no batch can hold, which are an error otherwise.
    """

    def __init__(
        self, data_source: Sequence[BaseData], max_num_graphs: int, max_num_nodes: int | None = None,
        max_num_edges: int | None = None, base_sampler: Iterable[int] | None = None, allow_skip_data: bool = False,
    ) -> None:
        self.limits = _Limits(
            data_source, max_num_graphs, max_num_nodes, max_num_edges, allow_skip_data=allow_skip_data
        )
        self.base_sampler = SequentialSampler(data_source) if base_sampler is None else base_sampler

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the graphs of each batch."""
        batch: list[int] = []
        used = _Size(0, 0)
        for index in self.base_sampler:
            if not self.limits.takes(index):
                continue
            if batch and (len(batch) == self.limits.num_graphs or not self.limits.fits(used, index)):
                yield batch
                batch, used = [], _Size(0, 0)
            batch.append(index)
            used = _added(used, self.limits.size(index))
        if batch:
            yield batch

    def __len__(self) -> int:
        """Return the number of batches, if graphs came in the order of the data.

        With a sampler that shuffles, an epoch may have more or fewer.
        """
        return sum(1 for _ in StreamPackingSampler(
            self.limits.data_source, self.limits.num_graphs, self.limits.num_nodes, self.limits.num_edges,
            allow_skip_data=self.limits.allow_skip_data,
        )) if not isinstance(self.base_sampler, SequentialSampler) else sum(1 for _ in self)


class FixedBatchSampler(Sampler[list[int]]):
    """Yields batches of one number of graphs; a graph that does not fit waits for the next.

    Args:
        data_source: The graphs.
        num_graphs: Graphs of every batch.
        num_nodes: Nodes of a batch at most; None for any number.
        num_edges: Edges of a batch at most; None for any number.
        sampler: Yields the graphs' numbers; None for their own order.
        allow_skip_data: Leave out graphs that no batch can hold, which are an error otherwise.

    Graphs that fill no batch at the end of an epoch are left out.
    """

    def __init__(
        self, data_source: Sequence[BaseData], num_graphs: int, num_nodes: int | None = None,
        num_edges: int | None = None, sampler: Iterable[int] | None = None, allow_skip_data: bool = False,
    ) -> None:
        self.limits = _Limits(data_source, num_graphs, num_nodes, num_edges, allow_skip_data=allow_skip_data)
        self.sampler = SequentialSampler(data_source) if sampler is None else sampler

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the graphs of each batch."""
        waiting: list[int] = []
        batch: list[int] = []
        used = _Size(0, 0)
        for index in self.sampler:
            if not self.limits.takes(index):
                continue
            waiting.append(index)
            batch, used, waiting = self._filled(batch, used, waiting)
            while len(batch) == self.limits.num_graphs:
                yield batch
                batch, used, waiting = self._filled([], _Size(0, 0), waiting)

    def _filled(self, batch: list[int], used: _Size, waiting: list[int]) -> tuple[list[int], _Size, list[int]]:
        """Return a batch with those that were waiting and fit, what it holds, and those that go on waiting."""
        rest = []
        for index in waiting:
            if len(batch) < self.limits.num_graphs and self.limits.fits(used, index):
                batch = [*batch, index]
                used = _added(used, self.limits.size(index))
            else:
                rest.append(index)
        return batch, used, rest

    def __len__(self) -> int:
        """Return the number of batches of an epoch in which every graph finds a place."""
        return len(self.limits.data_source) // self.limits.num_graphs


def _added(used: _Size, more: _Size) -> _Size:
    return _Size(used.nodes + more.nodes, used.edges + more.edges)


def padded_room(count: Any) -> int | None:
    """Return how many nodes graphs may have together, if one is left to the padding; None for no limit.

    Args:
        count: Nodes of a batch; by type for graphs that have several, which are not counted here.
    """
    return count - 1 if isinstance(count, int) else None
