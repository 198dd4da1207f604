"""``poptorch.DataLoader``: torch's loader, with batches as large as one call of a model takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch.utils.data
from torch.utils.data import IterableDataset, default_collate

from torchipu.poptorch._logging import logger
from torchipu.poptorch.data.accessor import AsynchronousDataAccessor
from torchipu.poptorch.data.samplers import Batches, GroupSampler, ShareSampler, concatenate
from torchipu.poptorch.data.sharing import note_sharing
from torchipu.poptorch.enums import DataLoaderMode
from torchipu.poptorch.options import Options
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.trace_points import Channel


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads for one call of a model: its batch times device iterations, replicas and gradient accumulation.

    Args:
        options: Of the model; frozen here.
        dataset: The data.
        batch_size: Rows that ``forward`` sees; None if the data comes in batches.
        shuffle: Whether to shuffle before each epoch.
        num_workers: Processes that read the data; 0 to read it here.
        drop_last: Whether to leave out what fills no call.
        persistent_workers: Whether these processes stay between epochs; None: if there are any.
        auto_distributed_partitioning: Whether each of several processes reads a share of the data.
        mode: Where batches are made.
        async_options: Arguments of `AsynchronousDataAccessor`, for modes other than Sync.
        rebatched_worker_size: For AsyncRebatched, rows that a worker loads at a time; None for a whole batch.
        batch_sampler: Yields the elements of each batch, instead of ``batch_size`` and ``shuffle``.
        **kwargs: Further arguments of torch's loader; with ``timeout``, a batch that takes more seconds is an error,
            which for modes other than Sync shows where the processes are.

    Raises:
        Error: Arguments exclude each other.
        AssertionError: Options or sizes are not what they must be.
    """

    def __init__(
        self, options: Options, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        num_workers: int = 0, drop_last: bool = True, persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True, mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: Mapping[str, Any] | None = None, rebatched_worker_size: int | None = None,
        batch_sampler: Iterable[Any] | None = None, **kwargs: Any,
    ) -> None:
        if not isinstance(options, Options):
            raise AssertionError("The first argument must be a poptorch.Options")
        options._freeze()
        self._accessor: AsynchronousDataAccessor | None = None
        self._options = options
        shuffle = bool(shuffle)
        is_shared = auto_distributed_partitioning and options.Distributed.numProcesses > 1
        micro_batches = (
            options.device_iterations * (options.replication_factor // options.input_group_size)
            * options.Training.gradient_accumulation
        )
        if batch_sampler is not None:
            _check_batch_sampler(batch_size, shuffle, is_shared)
            batch_size = getattr(batch_sampler, "batch_size", None)
        self._combined_batch_size = None if batch_size is None else batch_size * micro_batches
        self._rebatched_size: int | None = None
        self.rebatched_drop_last = drop_last
        if isinstance(dataset, IterableDataset):
            _check_iterable(is_shared, num_workers, kwargs)
        mode = DataLoaderMode(mode)
        combined = self._combined_batch_size
        if mode is DataLoaderMode.Async and not drop_last and (combined or 0) > 1 and batch_sampler is None:
            mode = DataLoaderMode.AsyncRebatched
        loaded_size, loader_drops = combined, drop_last
        if mode is DataLoaderMode.AsyncRebatched:
            if combined is None:
                raise AssertionError("DataLoaderMode.AsyncRebatched needs a batch size")
            loaded_size = combined if rebatched_worker_size is None else rebatched_worker_size
            if not (0 < loaded_size <= combined):
                raise AssertionError(
                    f"The rebatched_worker_size ({loaded_size}) must not be larger than the combined batch size "
                    f"({combined})"
                )
            self._rebatched_size, loader_drops = combined if combined > 1 else None, False
        arguments: dict[str, Any] = {
            "num_workers": num_workers,
            "persistent_workers": num_workers > 0 if persistent_workers is None else persistent_workers,
            **kwargs,
        }
        if batch_sampler is not None:
            collate = kwargs.pop("collate_fn", None) or default_collate
            dataset = Batches(dataset, collate)
            arguments |= {
                "batch_sampler": GroupSampler(batch_sampler, micro_batches, drop_last), "collate_fn": concatenate,
            }
            _warn_of_left_over_batches(batch_sampler, micro_batches, drop_last)
        else:
            arguments |= {"batch_size": loaded_size, "drop_last": loader_drops if loaded_size is not None else False}
            arguments |= self._order(dataset, shuffle, drop_last, is_shared, kwargs)
            if not isinstance(dataset, IterableDataset) and kwargs.get("sampler") is None:
                self._warn_of_left_over_rows(dataset, drop_last)
        super().__init__(dataset, **arguments)
        if mode is not DataLoaderMode.Sync:
            asynchronous = dict(async_options or {})
            if "rebatched_size" in asynchronous:
                raise AssertionError(
                    "'rebatched_size' is set by the DataLoader: choose DataLoaderMode.AsyncRebatched instead"
                )
            # Our own process is asked where it is; torch's loader knows of its workers' processes only that they wait.
            timeout = arguments.pop("timeout", 0.0)
            source = _Source(dataset, drop_last, timeout, arguments)
            self._accessor = AsynchronousDataAccessor(source, rebatched_size=self._rebatched_size, **asynchronous)

    # ------------------------------------------------------------------ order
    def _order(
        self, dataset: Any, shuffle: bool, drop_last: bool, is_shared: bool, kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return torch's arguments for the order of elements."""
        if isinstance(dataset, IterableDataset):
            return {}
        if not is_shared:
            return {"shuffle": shuffle} if kwargs.get("sampler") is None else {}
        if self._combined_batch_size is None:
            raise AssertionError(
                "auto_distributed_partitioning needs a batch_size: set it to False where batch_size is None"
            )
        if kwargs.get("sampler") is not None:
            raise createPoptorchError("`sampler` is mutually exclusive with auto_distributed_partitioning.")
        if shuffle and not self._options.exists("random_seed"):
            raise AssertionError(
                "When using auto_distributed_partitioning you must set poptorch.Options.randomSeed() to ensure that "
                "all processes shuffle alike"
            )
        distributed = self._options.Distributed
        note_sharing(self, shuffles=shuffle)
        return {
            "sampler": ShareSampler(
                len(dataset), self._combined_batch_size, distributed.processId, distributed.numProcesses,
                drop_last=drop_last, seed=self._options.random_seed if shuffle else None,
            ),
        }

    def _warn_of_left_over_rows(self, dataset: Any, drop_last: bool) -> None:
        if self._combined_batch_size is None:
            return
        step = self._combined_batch_size * self._options.Distributed.numProcesses
        if drop_last:
            if 0 < len(dataset) < step:
                logger.warning(
                    "The loader yields nothing: the dataset has %d elements, and one step takes %d, batch_size times "
                    "deviceIterations, gradientAccumulation, replicas and processes. Make one of these smaller, or set "
                    "drop_last=False.", len(dataset), step,
                )
            return
        if len(dataset) % step:
            logger.warning(
                "The number of elements in the dataset (%d) is not divisible by the number of elements processed per "
                "step (%d). The last batch is smaller than a compiled model takes: it fits one that was compiled for "
                "its size, or set drop_last=True.", len(dataset), step,
            )

    # ------------------------------------------------------------------ what users call
    @property
    def options(self) -> Options:
        """The options, frozen."""
        return self._options

    @property
    def combinedBatchSize(self) -> int | None:
        """Rows of one batch, enough for one call of the model; None if the data comes in batches."""
        return self._combined_batch_size

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        if self._rebatched_size is None:
            return super().__len__()
        rows = len(self.dataset if isinstance(self.dataset, IterableDataset) else self.sampler)  # type: ignore[arg-type]
        drops = self.rebatched_drop_last
        return rows // self._rebatched_size if drops else -(-rows // self._rebatched_size)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Begin an epoch."""
        batches = super().__iter__() if self._accessor is None else _Epoch(self, iter(self._accessor))
        channel = Channel("poptorch.DataLoader")
        return _Traced(batches, channel) if channel.is_active else batches

    def terminate(self) -> None:
        """End the processes that load data; there can be no further iteration if they are needed."""
        if self._accessor is not None:
            self._accessor.terminate()
        elif self._iterator is not None and hasattr(self._iterator, "_shutdown_workers"):
            self._iterator._shutdown_workers()
            self._iterator = None

    def __del__(self) -> None:
        if self.__dict__.get("_accessor") is not None:
            self.terminate()

    def _asynchronous_source(self, rebatched_size: int | None) -> DataLoader:
        """Return what an accessor of the user's reads from.

        Raises:
            Error: The loader has an accessor of its own.
            AssertionError: Its last batch may be smaller, and nothing joins batches.
        """
        if self._accessor is not None:
            raise createPoptorchError(
                "The DataLoader already uses an AsynchronousDataAccessor internally: iterate over it as it is"
            )
        if not self.rebatched_drop_last and rebatched_size is None and (self._combined_batch_size or 1) != 1:
            raise AssertionError(
                "An AsynchronousDataAccessor of a DataLoader with drop_last=False only works if 'rebatched_size' is "
                "specified too"
            )
        return self


class _Source(torch.utils.data.DataLoader[Any]):
    """The loader that the process of an asynchronous loader iterates over.

    Args:
        dataset: The data.
        drop_last: Whether to leave out rows that fill no call.
        timeout: How many seconds a batch may take; 0 for any time.
        arguments: Of torch's loader.
    """

    def __init__(self, dataset: Any, drop_last: bool, timeout: float, arguments: Mapping[str, Any]) -> None:
        super().__init__(dataset, **arguments)
        self.rebatched_drop_last = drop_last
        self.reading_timeout = timeout


def _check_batch_sampler(batch_size: int | None, shuffle: bool, is_shared: bool) -> None:
    """Refuse arguments that a batch sampler excludes."""
    if batch_size != 1 or shuffle:
        raise createPoptorchError("`batch_sampler` option is mutually exclusive with batch_size, shuffle.")
    if is_shared:
        raise createPoptorchError("`batch_sampler` option is mutually exclusive with auto_distributed_partitioning.")


def _check_iterable(is_shared: bool, num_workers: int, kwargs: Mapping[str, Any]) -> None:
    """Refuse to share what has no elements by number; warn of elements that come several times."""
    if is_shared:
        raise AssertionError("auto_distributed_partitioning not supported for IterableDataset")
    if num_workers > 1 and kwargs.get("worker_init_fn") is None:
        logger.warning(
            "The IterableDataset is read by %d workers, and each of them will return the full dataset: give a "
            "worker_init_fn that leaves each its part", num_workers,
        )


def _warn_of_left_over_batches(batch_sampler: Iterable[Any], num_batches: int, drop_last: bool) -> None:
    """Warn where the last call gets fewer batches than the others."""
    try:
        length = len(batch_sampler)  # type: ignore[arg-type]
    except TypeError:
        logger.warning("The length of the batch_sampler is not known: the last batches may not fill a call")
        return
    if not drop_last and length % num_batches:
        logger.warning(
            "The number of batches of the batch_sampler (%d) is not divisible by the number of batches processed per "
            "step (%d)", length, num_batches,
        )


class _Epoch:
    """Batches of an accessor; keeps its loader, which ends the accessor's process when it goes.

    Args:
        loader: The loader.
        batches: The accessor, at the beginning of an epoch.
    """

    def __init__(self, loader: DataLoader, batches: Iterator[Any]) -> None:
        self._loader, self._batches = loader, batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._batches)


class _Traced:
    """Batches with a trace point around each wait for one.

    Args:
        batches: An epoch.
        channel: Where they are drawn.
    """

    def __init__(self, batches: Iterator[Any], channel: Channel) -> None:
        self._batches, self._channel = batches, channel

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._channel.tracepoint("__next__"):
            return next(self._batches)
