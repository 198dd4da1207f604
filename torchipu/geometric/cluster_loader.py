"""Loads parts of one graph, padded to one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch_geometric.loader import ClusterData, ClusterLoader

from torchipu import poptorch
from torchipu.geometric.collate import FixedSizeCollater
from torchipu.geometric.dataloader import CustomFixedSizeDataLoader
from torchipu.geometric.fixed_size_options import FixedSizeOptions
from torchipu.geometric.strategies import OverSizeStrategy


class FixedSizeClusterLoader(CustomFixedSizeDataLoader):
    """Joins clusters of a graph into batches, with the edges between those of a batch, of one size.

    Args:
        cluster_data: The graph in clusters.
        fixed_size_options: Size of a batch; None for one that the largest clusters fit, with all their edges.
        batch_size: Clusters of a batch.
        shuffle: Whether to shuffle before each epoch.
        over_size_strategy: What becomes of batches that are too large.
        add_pad_masks: Add ``nodes_mask``, ``edges_mask`` and ``graphs_mask``, true where there is no padding.
        collater_args: Further arguments of `FixedSizeCollater`.
        options: Of the model; None for those of one replica and one iteration.
        **kwargs: Further arguments of ``poptorch.DataLoader``.

    Attributes:
        fixed_size_options: Size of a batch.
    """

    def __init__(
        self, cluster_data: ClusterData, fixed_size_options: FixedSizeOptions | None = None, batch_size: int = 1,
        shuffle: bool = False, over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool = True, collater_args: Mapping[str, Any] | None = None,
        options: poptorch.Options | None = None, **kwargs: Any,
    ) -> None:
        self.fixed_size_options = fixed_size_options or _size_of(cluster_data, batch_size)
        collater = FixedSizeCollater(
            self.fixed_size_options, add_pad_masks, over_size_strategy.trims_nodes, over_size_strategy.trims_edges,
            **(collater_args or {}),
        )
        # torch_geometric's own loader knows how clusters are joined; its batches are not drawn.
        joined = _Joined(ClusterLoader(cluster_data), collater)
        super().__init__(
            range(len(cluster_data)), batch_size, shuffle, collater=joined, options=options, **kwargs,
        )


class _Joined:
    """Makes a batch of the numbers of clusters.

    Args:
        loader: What joins clusters.
        collater: What pads the part of the graph that they are.
    """

    def __init__(self, loader: ClusterLoader, collater: FixedSizeCollater) -> None:
        self.loader, self.collater = loader, collater

    def __call__(self, clusters: Sequence[int]) -> Any:
        """Return a batch."""
        return self.collater([self.loader._collate(list(clusters))])


def _size_of(cluster_data: ClusterData, batch_size: int) -> FixedSizeOptions:
    """Return the size of the largest clusters together, with every edge that begins or ends in them."""
    partition = cluster_data.partition
    nodes = partition.partptr.diff()
    edges = torch.stack([
        partition.indptr[end] - partition.indptr[begin]
        for begin, end in zip(partition.partptr[:-1], partition.partptr[1:], strict=True)
    ])
    count = min(batch_size, len(nodes))
    return FixedSizeOptions(int(nodes.topk(count).values.sum()) + 1, int(edges.topk(count).values.sum()) + 1)
