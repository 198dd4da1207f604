"""Loaders whose batches have one size, for one call of a model each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler
from torch_geometric.data.data import BaseData
from torch_geometric.loader.dataloader import Collater

from torchipu import poptorch
from torchipu.geometric.collate import CombinedBatchingCollater, FixedSizeCollater
from torchipu.geometric.fixed_size_options import FixedSizeOptions
from torchipu.geometric.strategies import FixedSizeStrategy, OverSizeStrategy
from torchipu.geometric.stream_packing_sampler import StreamPackingSampler, padded_room


class DataLoader(poptorch.DataLoader):
    """torch_geometric's loader, with batches as large as one call of a model takes.

    Sizes differ from batch to batch unless all graphs are alike: `FixedSizeDataLoader` is for the others.

    Args:
        dataset: Graphs.
        batch_size: Graphs that ``forward`` sees.
        shuffle: Whether to shuffle before each epoch.
        follow_batch: Attributes to number by graph.
        exclude_keys: Attributes to leave out.
        options: Of the model; None for those of one replica and one iteration.
        **kwargs: Further arguments of ``poptorch.DataLoader``.
    """

    def __init__(
        self, dataset: Sequence[BaseData], batch_size: int = 1, shuffle: bool = False,
        follow_batch: Sequence[str] | None = None, exclude_keys: Sequence[str] | None = None,
        options: poptorch.Options | None = None, **kwargs: Any,
    ) -> None:
        collater = Collater(dataset, list(follow_batch or []), list(exclude_keys or []))
        super().__init__(
            options or poptorch.Options(), dataset, batch_size, shuffle,
            collate_fn=CombinedBatchingCollater(batch_size, collater), **kwargs,
        )


class CustomFixedSizeDataLoader(poptorch.DataLoader):
    """A loader whose batches a collater of one's own makes.

    Args:
        dataset: What the collater takes a list of.
        batch_size: Elements of a batch that ``forward`` sees; 1 where a batch sampler says it.
        shuffle: Whether to shuffle before each epoch.
        batch_sampler: Yields the elements of each batch, instead of ``batch_size`` and ``shuffle``.
        collater: Makes a batch, of one size for all, of a list of elements.
        options: Of the model; None for those of one replica and one iteration.
        **kwargs: Further arguments of ``poptorch.DataLoader``.
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        collater: Callable[[Sequence[Any]], Any] | None = None, options: poptorch.Options | None = None, **kwargs: Any,
    ) -> None:
        if collater is None:
            raise ValueError("CustomFixedSizeDataLoader needs a collater: what makes a batch of a list of elements")
        if batch_sampler is None:
            kwargs |= {"shuffle": shuffle, "collate_fn": CombinedBatchingCollater(batch_size, collater)}
        else:
            # The loader joins the batches of a call itself.
            kwargs |= {"batch_sampler": batch_sampler, "collate_fn": collater}
        super().__init__(options or poptorch.Options(), dataset, batch_size, **kwargs)


class FixedSizeDataLoader(CustomFixedSizeDataLoader):
    """A loader whose batches of graphs have one size, by a graph of padding behind the others.

    Args:
        dataset: Graphs.
        batch_size: Graphs of a batch, with that of the padding where ``fixed_size_options`` has room for no more: a
            batch has at most one real graph fewer than its ``num_graphs``.
        shuffle: Whether to shuffle before each epoch.
        batch_sampler: Yields the graphs of each batch, instead of ``batch_size`` and ``shuffle``.
        fixed_size_options: Size of a batch; None for that of
            ``FixedSizeOptions.from_dataset(dataset, batch_size)``.
        fixed_size_strategy: Whether batches have as many graphs each, or as many as fit.
        over_size_strategy: What becomes of batches that are too large.
        add_pad_masks: Add ``nodes_mask``, ``edges_mask`` and ``graphs_mask``, true where there is no padding.
        follow_batch: Attributes to number by graph.
        exclude_keys: Attributes to leave out.
        collater_args: Further arguments of `FixedSizeCollater`.
        options: Of the model; None for those of one replica and one iteration.
        **kwargs: Further arguments of ``poptorch.DataLoader``.

    Attributes:
        fixed_size_options: Size of a batch.
    """

    def __init__(
        self, dataset: Sequence[BaseData], batch_size: int = 1, shuffle: bool = False,
        batch_sampler: Iterable[Sequence[int]] | None = None, fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error, add_pad_masks: bool = True,
        follow_batch: Sequence[str] | None = None, exclude_keys: Sequence[str] | None = None,
        collater_args: Mapping[str, Any] | None = None, options: poptorch.Options | None = None, **kwargs: Any,
    ) -> None:
        size = fixed_size_options or FixedSizeOptions.from_dataset(dataset, batch_size)
        self.fixed_size_options = size
        collater = FixedSizeCollater(
            size, add_pad_masks, over_size_strategy.trims_nodes, over_size_strategy.trims_edges, follow_batch,
            exclude_keys, **(collater_args or {}),
        )
        if batch_sampler is None and fixed_size_strategy is FixedSizeStrategy.StreamPack:
            batch_sampler = _packing(dataset, size, over_size_strategy, shuffle=shuffle)
        if batch_sampler is None:
            batch_size = min(batch_size, size.num_graphs - 1)
            super().__init__(dataset, batch_size, shuffle, collater=collater, options=options, **kwargs)
        else:
            super().__init__(dataset, batch_sampler=batch_sampler, collater=collater, options=options, **kwargs)


def _packing(
    dataset: Sequence[BaseData], size: FixedSizeOptions, strategy: OverSizeStrategy, *, shuffle: bool
) -> StreamPackingSampler:
    """Return what puts as many graphs into each batch as fit."""
    if size.is_hetero():
        raise ValueError(
            "FixedSizeStrategy.StreamPack counts nodes of one type: graphs of several take FixedSizeStrategy.PadToMax"
        )
    return StreamPackingSampler(
        dataset, size.num_graphs - 1,
        None if strategy.trims_nodes else padded_room(size.num_nodes),
        None if strategy.trims_edges else size.edges_of(None),
        base_sampler=RandomSampler(dataset) if shuffle else SequentialSampler(dataset),
    )
