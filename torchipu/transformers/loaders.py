"""Loaders of an `IPUTrainer`: what the Trainer loads, in batches as large as one call of a program takes."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from torchipu import poptorch
from torchipu.errors import OptionsError

MODES = {
    "sync": poptorch.DataLoaderMode.Sync, "async": poptorch.DataLoaderMode.Async,
    "async_rebatched": poptorch.DataLoaderMode.AsyncRebatched,
}


class IPULoader(poptorch.DataLoader):
    """A ``poptorch.DataLoader`` whose order is that of an epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration have the order of an epoch.

        Args:
            epoch: Its number.
        """
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def _warn_of_left_over_rows(self, dataset: Any, drop_last: bool) -> None:
        """Say nothing: the Trainer fills batches that are too small, and takes what it filled in out again."""


def make_loader(
    plain: Any, options: poptorch.Options, batch_size: int, mode: str, *, is_training: bool
) -> IPULoader:
    """Return a loader of the same rows as another one.

    Args:
        plain: A loader as transformers makes it: dataset, order, collator and workers are taken from it.
        options: Say how many micro-batches a call takes.
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
    order = {} if isinstance(plain.dataset, IterableDataset) else {"sampler": _sampler_of(plain)}
    loader = IPULoader(
        options, plain.dataset, batch_size=batch_size, drop_last=is_training, mode=MODES[mode], **order, **workers,
    )
    if is_training and order and len(loader) == 0:
        raise OptionsError(
            f"one call takes {loader.combinedBatchSize} rows and the dataset has {len(plain.dataset)}",
            option="gradient_accumulation_steps", value=options.Training.gradient_accumulation,
            remedy="lower per_device_train_batch_size, gradient_accumulation_steps, device_iterations or "
            "replication_factor",
        )
    return loader


def _sampler_of(plain: Any) -> Any:
    """Return the order of rows; accelerate puts its own, with a seed, below the sampler of batches."""
    sampler = getattr(plain.batch_sampler, "sampler", None)
    if sampler is None:
        raise OptionsError(
            f"a program takes batches of one size, and {type(plain.batch_sampler).__name__} makes its own",
            option="train_sampling_strategy", allowed="random, sequential, group_by_length",
        )
    return sampler
