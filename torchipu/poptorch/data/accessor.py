"""``AsynchronousDataAccessor``: batches prepared by another process, handed over in shared memory."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sized
from multiprocessing import reduction
from typing import Any, Self

import torch

from torchipu.host.waits import WAITS
from torchipu.poptorch.arguments import structure
from torchipu.poptorch.data.process import DataProcess
from torchipu.poptorch.data.worker import Job
from torchipu.poptorch.enums import SharingStrategy
from torchipu.poptorch.poptorch_core import createPoptorchError


class AsynchronousDataAccessor:
    """Iterates over data that another process reads ahead.

    What an iteration gives are views of memory that is written anew after the next step: clone what is to stay.

    Args:
        dataset: Any iterable of tensors, of flat tuples, lists or dicts of tensors, or of objects of a class that
            `registerCustomArgParser` knows; a loader among them.
        buffer_size: How many batches the memory holds.
        miss_sleep_time_in_ms: Accepted; the process waits for a wake-up and not by the clock.
        load_indefinitely: Begin the next epoch as soon as one has been read.
        early_preload: Fill the memory before the first iteration begins.
        sharing_strategy: How the process is made and given the data. ForkServer forks it from this process where
            that is safe: where no thread runs that it would miss. Otherwise it is forked from a server that has torch
            imported, to which the data is sent. Fork forks it from this process in any case. SharedMemory and
            FileSystem start a new interpreter, to which the data is sent.
        rebatched_size: Join elements to batches of so many rows; None to leave them.

    Raises:
        Error: The process did not start, or the data gave no first element.
    """

    _epoch: int
    _num_read: int
    _is_touched: bool
    _is_done: bool
    _has_failed: bool
    _process: DataProcess

    def __init__(
        self, dataset: Iterable[Any], buffer_size: int = 3, miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True, early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer, rebatched_size: int | None = None,
    ) -> None:
        if rebatched_size is not None and not rebatched_size > 1:
            raise AssertionError(f"rebatched_size must be None or greater than 1, not {rebatched_size}")
        if not isinstance(buffer_size, int) or not buffer_size > 0:
            raise AssertionError(f"buffer_size must be at least 1, not {buffer_size}")
        self._dataset = _checked(dataset, rebatched_size)
        self._buffer_size = buffer_size
        self._miss_sleep_time_in_ms = miss_sleep_time_in_ms
        self._load_indefinitely = load_indefinitely
        self._early_preload = early_preload
        self._sharing_strategy = SharingStrategy(sharing_strategy)
        self._rebatched_size = rebatched_size
        self._is_terminated = False
        self._start()

    # ------------------------------------------------------------------ iterating
    def __len__(self) -> int:
        """Return the number of batches of an epoch.

        Raises:
            TypeError: The data does not say.
        """
        if not isinstance(self._dataset, Sized):
            raise TypeError(f"object of type {type(self._dataset).__name__!r} has no len()")
        length = len(self._dataset)
        if self._rebatched_size is None:
            return length
        rows = length * (getattr(self._dataset, "batch_size", None) or 1)
        return rows // self._rebatched_size

    def __iter__(self) -> Self:
        """Begin an epoch; one that was begun and not ended is left."""
        self._refuse_terminated()
        if self._has_failed:
            self._process.end()
            self._start()
        if self._is_touched:
            self._epoch += 1
            self._is_touched = self._is_done = False
            self._process.counters.wanted_epoch = self._epoch
        self._process.counters.is_going = True
        self._release()
        return self

    def __next__(self) -> Any:
        """Return the next batch, as views of memory that is written anew after the next step."""
        with WAITS.waiting():
            return self._next()

    def _next(self) -> Any:
        self._refuse_terminated()
        if self._is_done:
            raise StopIteration
        self._process.counters.is_going = True
        self._release()
        while True:
            if self._process.counters.produced == self._num_read:
                self._wait()
            epoch, num_rows, is_end = self._process.counters.entry(self._num_read)
            slot = self._num_read % self._buffer_size
            self._num_read += 1
            if epoch < self._epoch:
                self._release()
                continue
            self._is_touched = True
            if is_end:
                self._is_done = True
                self._release()
                raise StopIteration
            return self._process.ring.read(slot, num_rows)

    def _wait(self) -> None:
        """Wait for an entry that was not read yet."""
        try:
            self._process.wait(lambda: self._process.counters.produced != self._num_read)
        except AssertionError:
            self._has_failed = True
            raise

    def _release(self) -> None:
        """Let the worker write to all slots that were read."""
        self._process.counters.released = self._num_read
        self._process.wake()

    def _start(self) -> None:
        """Make the process, and wait for its first element."""
        self._epoch = self._num_read = 0
        self._is_touched = self._is_done = self._has_failed = False
        job = Job(
            source=self._dataset,
            # From torch's generator, so that a seed there settles what is drawn here.
            seed=int(torch.randint(2**62, ())), num_slots=self._buffer_size,
            rebatched_size=self._rebatched_size, drop_last=_drops_last(self._dataset),
            load_indefinitely=self._load_indefinitely, parsers=structure.registered(),
            start_method=multiprocessing.get_start_method(allow_none=True) or "fork",
        )
        self._process = DataProcess(
            job, self._sharing_strategy, is_going=self._early_preload,
            timeout=getattr(self._dataset, "reading_timeout", 0.0),
        )

    def terminate(self) -> None:
        """End the process; there can be no further iteration."""
        self._is_terminated = True
        self._process.end()

    def _refuse_terminated(self) -> None:
        if self._is_terminated:
            raise createPoptorchError("The data accessor has been terminated: make another one to iterate again")


def _checked(dataset: Iterable[Any], rebatched_size: int | None) -> Iterable[Any]:
    """Return what the worker is to iterate over.

    Raises:
        Error: It is a loader that has a worker of its own.
        AssertionError: It is a loader whose last batch may be smaller, and nothing joins batches.
    """
    source = getattr(dataset, "_asynchronous_source", None)
    if source is None:
        return dataset
    return source(rebatched_size)


def _drops_last(dataset: Iterable[Any]) -> bool:
    """Return whether rows that fill no batch are left out: as a loader says, and else they are."""
    return bool(getattr(dataset, "rebatched_drop_last", getattr(dataset, "drop_last", True)))


# ---------------------------------------------------------------------- generators of random numbers
def _generator_of(state: bytes) -> torch.Generator:
    """Return a generator that goes on from a state."""
    generator = torch.Generator()
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return generator


def _reduce_generator(generator: torch.Generator) -> tuple[Callable[..., torch.Generator], tuple[Any, ...]]:
    """Send a generator to a process as the bytes of its state.

    torch sends the state as a tensor in shared memory, which is freed before the process has got hold of it.
    """
    return _generator_of, (generator.get_state().numpy().tobytes(),)


reduction.ForkingPickler.register(torch.Generator, _reduce_generator)
