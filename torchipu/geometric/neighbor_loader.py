"""Loads the sampled neighbourhoods of nodes, padded to one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader

from torchipu import poptorch
from torchipu.geometric.collate import FixedSizeCollater
from torchipu.geometric.dataloader import CustomFixedSizeDataLoader
from torchipu.geometric.fixed_size_options import FixedSizeOptions
from torchipu.geometric.strategies import OverSizeStrategy

_OF_THE_SAMPLE = ("batch", "batch_size", "input_id", "num_sampled_edges", "num_sampled_nodes", "seed_time")
"""What torch_geometric notes of a sample: no attributes of graphs, which a batch could join."""


class FixedSizeNeighborLoader(CustomFixedSizeDataLoader):
    """Samples neighbours of some nodes, and theirs, into batches of one size.

    ``input_nodes_mask`` ``[N]`` of a batch is true for the nodes that were asked for, which come first.

    Args:
        data: The graph.
        num_neighbors: Neighbours of a node in each step, or by type of edge.
        input_nodes: The nodes, as torch_geometric's `NeighborLoader` takes them; None for all.
        batch_size: Nodes of a batch.
        shuffle: Whether to shuffle before each epoch.
        fixed_size_options: Size of a batch; None for the largest of an epoch in the order of the nodes, where others
            are trimmed or refused.
        over_size_strategy: What becomes of batches that are too large.
        add_pad_masks: Add ``nodes_mask``, ``edges_mask`` and ``graphs_mask``, true where there is no padding.
        neighbor_loader_kwargs: Further arguments of `NeighborLoader`.
        collater_args: Further arguments of `FixedSizeCollater`.
        options: Of the model; None for those of one replica and one iteration.
        **kwargs: Further arguments of ``poptorch.DataLoader``.

    Attributes:
        fixed_size_options: Size of a batch.
    """

    def __init__(
        self, data: Data | HeteroData, num_neighbors: Any, input_nodes: Any = None, batch_size: int = 1,
        shuffle: bool = False, fixed_size_options: FixedSizeOptions | None = None,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges, add_pad_masks: bool = True,
        neighbor_loader_kwargs: Mapping[str, Any] | None = None, collater_args: Mapping[str, Any] | None = None,
        options: poptorch.Options | None = None, **kwargs: Any,
    ) -> None:
        sampled = NeighborLoader(
            data, num_neighbors, input_nodes, batch_size=batch_size, **(neighbor_loader_kwargs or {})
        )
        self.fixed_size_options = fixed_size_options or FixedSizeOptions.from_loader(sampled)
        collater = FixedSizeCollater(
            self.fixed_size_options, add_pad_masks, over_size_strategy.trims_nodes, over_size_strategy.trims_edges,
            **(collater_args or {}),
        )
        super().__init__(
            sampled.dataset, batch_size, shuffle, collater=_Sampled(sampled, collater), options=options, **kwargs
        )


class _Sampled:
    """Makes a batch of the numbers of nodes.

    Args:
        loader: What samples their neighbours.
        collater: What pads the part of the graph that they are.
    """

    def __init__(self, loader: NeighborLoader, collater: FixedSizeCollater) -> None:
        self.loader, self.collater = loader, collater

    def __call__(self, nodes: Sequence[Any]) -> Any:
        """Return a batch."""
        data = self.loader(torch.as_tensor([int(node) for node in nodes]))
        for store in data.stores:
            count = store.get("batch_size")
            for key in _OF_THE_SAMPLE:
                store.pop(key, None)
            if count is not None:
                store.input_nodes_mask = torch.arange(store.num_nodes) < count
        return self.collater([data])
