"""``AsynchronousDataAccessor``: batches prepared by another process, handed over in shared memory."""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Sized
from multiprocessing import connection, reduction
from multiprocessing import util as multiprocessing_util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

import torch
import torch.multiprocessing
import torch.utils.data

from torchipu.poptorch import structure
from torchipu.poptorch.data_worker import Job, run, wake
from torchipu.poptorch.enums import SharingStrategy
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.ring import Counters, Ring

START_METHODS = {
    SharingStrategy.SharedMemory: "spawn", SharingStrategy.FileSystem: "spawn", SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
POLITE_SECONDS = 10.0
"""How long a process may take to end before it is ended."""
EXIT_PRIORITY = 10
"""Before multiprocessing joins the processes that are left, which would wait for ever."""


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
        sharing_strategy: How the process is made and given the data.
        rebatched_size: Join elements to batches of so many rows; None to leave them.

    Raises:
        Error: The process did not start, or the data gave no first element.
    """

    _epoch: int
    _num_read: int
    _is_touched: bool
    _is_done: bool
    _has_failed: bool
    _counters: Counters
    _ring: Ring
    _process: BaseProcess
    _woken: Connection
    _wake_worker: Connection
    _life: Connection
    _report: Connection
    _end_process: Callable[[], object]

    def __init__(
        self, dataset: Iterable[Any], buffer_size: int = 3, miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True, early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer, rebatched_size: int | None = None,
    ) -> None:
        assert rebatched_size is None or rebatched_size > 1, (
            f"rebatched_size must be None or greater than 1, not {rebatched_size}"
        )
        assert isinstance(buffer_size, int) and buffer_size > 0, f"buffer_size must be at least 1, not {buffer_size}"
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
            self._end_process()
            self._start()
        if self._is_touched:
            self._epoch += 1
            self._is_touched = self._is_done = False
            self._counters.wanted_epoch = self._epoch
        self._counters.is_going = True
        self._release()
        return self

    def __next__(self) -> Any:
        """Return the next batch, as views of memory that is written anew after the next step."""
        self._refuse_terminated()
        if self._is_done:
            raise StopIteration
        self._counters.is_going = True
        self._release()
        while True:
            if self._counters.produced == self._num_read:
                self._wait()
                continue
            epoch, num_rows, is_end = self._counters.entry(self._num_read)
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
            return self._ring.read(slot, num_rows)

    def _release(self) -> None:
        """Let the worker write to all slots that were read."""
        self._counters.released = self._num_read
        try:
            wake(self._wake_worker)
        except OSError:
            return  # It has ended; whoever waits for it next says so.

    def _wait(self) -> None:
        """Wait for a wake-up.

        Raises:
            AssertionError: There will be none, for the process has ended.
        """
        ready = connection.wait([self._woken, self._process.sentinel])
        if self._woken in ready and os.read(self._woken.fileno(), 4096):
            return
        if self._counters.produced == self._num_read:
            self._has_failed = True
            raise AssertionError(f"An error occurred in the data fetcher: {self._reason()}")

    # ------------------------------------------------------------------ the process
    def _start(self) -> None:
        """Make the process, and wait for its first element."""
        self._epoch = self._num_read = 0
        self._is_touched = self._is_done = self._has_failed = False
        method = START_METHODS[self._sharing_strategy]
        context: Any = torch.multiprocessing.get_context(method)
        if method == "forkserver":
            # Imported once in the server and not in every process; without effect if the server runs already.
            context.set_forkserver_preload(["__main__", run.__module__])
        counters = context.RawArray(ctypes.c_int64, Counters.size(self._buffer_size))
        self._counters = Counters(counters, self._buffer_size)
        self._counters.is_going = self._early_preload
        self._woken, wake_reader = context.Pipe(duplex=False)
        wake_worker, self._wake_worker = context.Pipe(duplex=False)
        alive, self._life = context.Pipe(duplex=False)
        self._report, report = context.Pipe(duplex=True)
        os.set_blocking(self._wake_worker.fileno(), False)
        ours = (self._woken, self._wake_worker, self._life, self._report)
        theirs = (wake_reader, wake_worker, alive, report)
        job = Job(
            source=self._dataset if self._sharing_strategy is not SharingStrategy.FileSystem else _filed(self._dataset),
            # From torch's generator, so that a seed there settles what is drawn here.
            seed=int(torch.randint(2**62, ())), counters=counters, num_slots=self._buffer_size,
            rebatched_size=self._rebatched_size, drop_last=_drops_last(self._dataset),
            load_indefinitely=self._load_indefinitely, wake_reader=wake_reader, wake_worker=wake_worker, alive=alive,
            report=report, parsers=structure.registered(), not_ours=ours if method == "fork" else (),
        )
        self._process = context.Process(target=run, args=(job,), name="poptorch data")
        try:
            self._process.start()
        except BaseException:
            for end in (*ours, *theirs):
                end.close()
            raise
        self._end_process = multiprocessing_util.Finalize(
            self, _end_process, (self._process, self._counters, ours), exitpriority=EXIT_PRIORITY
        )
        for end in theirs:
            end.close()
        try:
            self._receive_ring()
        except BaseException:
            self._end_process()
            raise

    def _receive_ring(self) -> None:
        """Wait for the memory, which the process makes when it has seen its first element."""
        try:
            what, value = self._report.recv()
            if what == "layout":
                file = reduction.recv_handle(self._report)
                self._ring = Ring(value, self._buffer_size, file)
                self._ring.close_file()
                return
            sys.stderr.write(value)  # what the worker has for it may be elsewhere: it is that of the server of forks
            reason = f"the worker raised\n{value}"
        except (EOFError, OSError):
            reason = self._reason()
        raise createPoptorchError(f"worker thread failed to start (Check above for details): {reason}")

    def _reason(self) -> str:
        """Say why the process has ended."""
        try:
            if self._report.poll():
                text = self._report.recv()[1]
                sys.stderr.write(text)
                return f"the worker raised\n{text}"
        except (EOFError, OSError):
            pass
        self._process.join(POLITE_SECONDS)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"the worker was ended by signal {-code}"
        return (
            f"the worker ended with status {code}. A script that makes loaders needs its main part under "
            "if __name__ == \"__main__\""
        )

    def terminate(self) -> None:
        """End the process; there can be no further iteration."""
        self._is_terminated = True
        self._end_process()

    def _refuse_terminated(self) -> None:
        if self._is_terminated:
            raise createPoptorchError("The data accessor has been terminated: make another one to iterate again")


def _end_process(process: BaseProcess, counters: Counters, ours: tuple[Connection, ...]) -> None:
    """End a worker: ask, and if it does not listen, make it."""
    counters.is_stopped = True
    _, wake_worker, life, _ = ours
    try:
        wake(wake_worker)
        life.send_bytes(b"end")
    except OSError:
        pass  # It has ended already.
    process.join(POLITE_SECONDS)
    if process.is_alive():
        process.terminate()
        process.join(POLITE_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    for end in ours:
        end.close()


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


def _filed(dataset: Iterable[Any]) -> str:
    """Write data to a temporary file, which the worker removes."""
    with tempfile.NamedTemporaryFile(prefix="poptorch-data-", delete=False) as file:
        pickle.dump(dataset, file)
    return file.name


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
