"""Loaders of an `IPUTrainer`: what the Trainer loads, in batches as large as one call of a program takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from accelerate.data_loader import IterableDatasetShard as AcceleratesShard
from torch.utils.data import IterableDataset, SequentialSampler

from torchipu import poptorch
from torchipu.errors import OptionsError
from torchipu.transformers.processes import InStep, shared_order
from torchipu.transformers.shares import Share, SharedIterable, ShareSampler

MODES = {
    "sync": poptorch.DataLoaderMode.Sync, "async": poptorch.DataLoaderMode.Async,
    "async_rebatched": poptorch.DataLoaderMode.AsyncRebatched,
}


class IPULoader(poptorch.DataLoader):
    """A ``poptorch.DataLoader`` whose order is that of an epoch.

    Attributes:
        in_step: The batches of now, where several processes evaluate; None elsewhere.
    """

    evaluates_in_step = False
    in_step: InStep | None = None

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch."""
        batches = super().__iter__()
        if not self.evaluates_in_step:
            return batches
        self.in_step = InStep(batches)
        return iter(self.in_step)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration have the order of an epoch.

        Args:
            epoch: Its number.
        """
        for one in (self.sampler, self.dataset):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def _warn_of_left_over_rows(self, dataset: Any, drop_last: bool) -> None:
        """Say nothing: the Trainer fills batches that are too small, and takes what it filled in out again."""


def make_loader(
    plain: Any, options: poptorch.Options, batch_size: int, mode: str, *, is_training: bool
) -> IPULoader:
    """Return a loader of the same rows as another one, or of this process's share of them.

    Args:
        plain: A loader as transformers makes it: dataset, order, collator and workers are taken from it.
        options: Say how many micro-batches a call takes, and which of how many processes this is.
        batch_size: Rows of a micro-batch.
        mode: Where batches are made, as in ``dataloader_mode``.
        is_training: Whether rows that fill no call are left out.

    Raises:
        OptionsError: There are fewer rows than one call takes.
    """
    workers = {
        "num_workers": plain.num_workers, "collate_fn": plain.collate_fn, "worker_init_fn": plain.worker_init_fn,
        "multiprocessing_context": plain.multiprocessing_context, "prefetch_factor": plain.prefetch_factor,
        "persistent_workers": plain.persistent_workers,
    }
    dataset = plain.dataset.dataset if isinstance(plain.dataset, AcceleratesShard) else plain.dataset
    order: dict[str, Any] = {} if isinstance(dataset, IterableDataset) else {"sampler": _sampler_of(plain)}
    is_shared = options.Distributed.numProcesses > 1
    if is_shared:
        share = _share(options, batch_size, is_training=is_training)
        if order:
            rows = ShareSampler(order["sampler"], share, _agreement(order["sampler"], mode))
            order = {"sampler": rows}
            mode = mode if len(rows) else "sync"  # what reads ahead refuses to read nothing
        else:
            dataset = SharedIterable(dataset, share)
    loader = IPULoader(
        options, dataset, batch_size=batch_size, drop_last=is_training, mode=MODES[mode],
        auto_distributed_partitioning=False, **order, **workers,
    )
    loader.evaluates_in_step = is_shared and not is_training
    if order:
        # accelerate's loaders that leave out the first batches ask what is in their sampler of batches.
        loader.batch_sampler.set_epoch = loader.set_epoch
    if is_training and order and len(loader) == 0:
        of_call = (loader.combinedBatchSize or 1) * options.Distributed.numProcesses
        raise OptionsError(
            f"one call takes {of_call} rows and the dataset has {len(dataset)}",
            option="gradient_accumulation_steps", value=options.Training.gradient_accumulation,
            remedy="lower per_device_train_batch_size, gradient_accumulation_steps, device_iterations or "
            "replication_factor",
        )
    return loader


def _share(options: poptorch.Options, batch_size: int, *, is_training: bool) -> Share:
    """Return which rows are this process's.

    In training it is given what its replicas would be given if one process ran all of them: some rows of every
    micro-batch of theirs. In evaluation it is given rows of a whole call, so that results come in their order.
    """
    at_once = batch_size * options.replication_factor
    of_call = at_once * options.device_iterations * options.Training.gradient_accumulation
    distributed = options.Distributed
    return Share(
        rank=distributed.processId, size=distributed.numProcesses, block=at_once if is_training else of_call,
        step=of_call * distributed.numProcesses, drop_last=is_training,
    )


def _agreement(sampler: Any, mode: str) -> Any:
    """Return what makes all processes take one order.

    Raises:
        OptionsError: Another process makes the batches, which cannot ask, and the order is not that of a seed.
    """
    if mode == "sync":
        return shared_order
    if not isinstance(sampler, (SeedableRandomSampler, SequentialSampler)):
        raise OptionsError(
            f"{type(sampler).__name__} may have another order in each process, and with dataloader_mode={mode!r} they "
            "cannot agree on one", option="dataloader_mode", value=mode, allowed="sync",
        )
    return list


def _sampler_of(plain: Any) -> Any:
    """Return the order of rows; accelerate puts its own, with a seed, below the sampler of batches."""
    batch_sampler = plain.batch_sampler
    if isinstance(batch_sampler, BatchSamplerShard):
        batch_sampler = batch_sampler.batch_sampler
    sampler = getattr(batch_sampler, "sampler", None)
    if sampler is None:
        raise OptionsError(
            f"a program takes batches of one size, and {type(plain.batch_sampler).__name__} makes its own",
            option="train_sampling_strategy", allowed="random, sequential, group_by_length",
        )
    return sampler
