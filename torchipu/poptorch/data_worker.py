"""The process that fills the ring of an `AsynchronousDataAccessor`.

It ends with its parent: a thread waits for the pipe that only the parent holds open.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.util
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from torchipu.poptorch.ring import Counters, Layout, Ring, flatten
from torchipu.poptorch.structure import ICustomArgParser, registerCustomArgParser

GRACE_SECONDS = 5.0
"""How long the worker may go on with what it does once it is to end."""


@dataclass(slots=True)
class Job:
    """What the worker is given.

    Attributes:
        source: The data, or the name of a file with it, which is removed.
        seed: For torch, in this process.
        counters: Shared integers.
        num_slots: Slots of the ring.
        rebatched_size: Rows of a batch that is joined of pieces; None to pass elements on.
        drop_last: Whether to leave out rows at the end that fill no batch.
        load_indefinitely: Whether to begin the next epoch before it is asked for.
        wake_reader: Written to when there is something to read.
        wake_worker: Read from: there is a free slot, or another epoch is wanted.
        alive: Ends when the parent does, or when the worker is to end.
        report: Layout and memory of the ring, and what went wrong.
        parsers: Of the user's classes, as `registerCustomArgParser` was given them.
        not_ours: The parent's ends of these, which a forked process holds too.
    """

    source: Any
    seed: int
    counters: ctypes.Array[ctypes.c_int64]
    num_slots: int
    rebatched_size: int | None
    drop_last: bool
    load_indefinitely: bool
    wake_reader: Connection
    wake_worker: Connection
    alive: Connection
    report: Connection
    parsers: dict[type, ICustomArgParser]
    not_ours: tuple[Connection, ...]


class _Ended(BaseException):
    """The reader is gone, or wants no more."""


def run(job: Job) -> None:
    """Fill the ring until the reader wants no more; what the process does from its beginning.

    Args:
        job: What to do.
    """
    # Ctrl-C in a terminal reaches every process: the reader decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for connection in job.not_ours:
        connection.close()
    os.set_blocking(job.wake_reader.fileno(), False)
    # One thread, as in torch's own workers: a forked process hangs in the pool of its parent otherwise.
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    for kind, parser in job.parsers.items():
        registerCustomArgParser(kind, parser)
    threading.Thread(target=_end_with_parent, args=(job.alive,), daemon=True).start()
    status = 0
    try:
        _Worker(job).run()
    except _Ended:
        pass
    except BaseException:
        status = 1
        text = traceback.format_exc()
        try:
            job.report.send(("error", text))  # the reader writes it to where users look
        except OSError:
            sys.stderr.write(text)
    _exit(status)


def _end_with_parent(alive: Connection) -> None:
    """End the process when the parent has gone or says so, even if it is held up in the user's data."""
    with contextlib.suppress(OSError, EOFError):
        alive.recv_bytes()
    threading.Event().wait(GRACE_SECONDS)
    _exit(1)


def _exit(status: int) -> NoReturn:
    """End at once, without taking the interpreter apart; workers of a torch DataLoader go first."""
    for child in multiprocessing.active_children():
        child.kill()
    # The semaphores of a torch DataLoader's workers have names, which this frees; the tracker of the reader would
    # complain of them at its end.
    with contextlib.suppress(Exception):
        multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


class _Worker:
    """Goes through the data, epoch by epoch.

    Args:
        job: What to do.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.counters = Counters(job.counters, job.num_slots)
        self.ring: Ring | None = None
        self.epoch = 0
        self.rows = 0  # of the batch that is being joined
        self.has_slot = False

    def run(self) -> None:
        """Read epoch after epoch; ends with `_Ended` only."""
        source = self.job.source
        if isinstance(source, str):
            with open(source, "rb") as file:
                os.unlink(source)
                source = pickle.load(file)
        try:
            self._read(source)
        finally:
            # Workers of a torch DataLoader that stay between epochs.
            if hasattr(getattr(source, "_iterator", None), "_shutdown_workers"):
                source._iterator._shutdown_workers()

    def _read(self, source: Iterable[Any]) -> None:
        is_first = True
        while True:
            count = 0
            with contextlib.closing(self._elements(source)) as elements:
                for element in elements:
                    count += 1
                    self._add(element)
                    if self.counters.is_stopped:
                        raise _Ended
                    if self._is_left():
                        break
                else:
                    if is_first and count == 0:
                        raise ValueError("The Dataset is empty")
                    self._end_epoch()
            is_first = False
            self.epoch = max(self.epoch + 1, self.counters.wanted_epoch)
            self.rows = 0
            if not self.job.load_indefinitely:
                self._wait(lambda: self.counters.wanted_epoch >= self.epoch)
            self.epoch = max(self.epoch, self.counters.wanted_epoch)

    def _elements(self, source: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield the elements of an epoch; a generator, so that closing it lets the iterator of the source go."""
        yield from source

    # ------------------------------------------------------------------ one element
    def _add(self, element: Any) -> None:
        """Put an element into the ring: as a batch, or as further rows of one."""
        tensors = flatten(element)
        if self.ring is None:
            self._make_ring(element)
        assert self.ring is not None
        self.ring.layout.check(element, tensors)
        if self.job.rebatched_size is None:
            self._pass_on(self.ring, tensors)
        else:
            self._join(self.ring, tensors, self.job.rebatched_size)

    def _pass_on(self, ring: Ring, tensors: Sequence[torch.Tensor]) -> None:
        capacity = {shape[0] for shape in ring.layout.shapes if shape}
        rows = {tensor.shape[0] for tensor in tensors if tensor.dim()}
        same = all(tuple(tensor.shape) == shape for tensor, shape in zip(tensors, ring.layout.shapes, strict=True))
        assert same or (len(capacity) == len(rows) == 1 and max(rows) < max(capacity)), (
            f"Every element of the data must be of the same size: the first had {ring.layout.shapes}, and this has "
            f"{[list(tensor.shape) for tensor in tensors]}"
        )
        if self._take_slot():
            ring.write(self.counters.produced % self.job.num_slots, 0, tensors)
            self._give(-1 if same else max(rows))

    def _join(self, ring: Ring, tensors: Sequence[torch.Tensor], size: int) -> None:
        """Add rows to the batch that is being joined; those beyond its end begin the next one."""
        given = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors}
        assert len(given) == 1 and given != {0}, (
            f"To be joined, the tensors of an element need equally many rows, not {[list(t.shape) for t in tensors]}"
        )
        begin, end = 0, given.pop()
        while begin < end:
            if not self._take_slot():
                return
            count = min(end - begin, size - self.rows)
            slot = self.counters.produced % self.job.num_slots
            ring.write(slot, self.rows, [tensor[begin:begin + count] for tensor in tensors])
            begin += count
            self.rows += count
            if self.rows == size:
                self._give(-1)
                self.rows = 0

    def _end_epoch(self) -> None:
        """Hand over the last rows, and the end."""
        if self.rows and not self.job.drop_last and self._take_slot():
            self._give(self.rows)
        if self._take_slot():
            self._give(0, is_end=True)

    # ------------------------------------------------------------------ slots
    def _take_slot(self) -> bool:
        """Wait until the next slot is free; return False if the reader has left this epoch."""
        if not self.has_slot:
            self._wait(
                lambda: self._is_left()
                or self.counters.is_going and self.counters.produced - self.counters.released < self.job.num_slots
            )
            self.has_slot = not self._is_left()
        return not self._is_left()

    def _give(self, num_rows: int, is_end: bool = False) -> None:
        self.counters.produce(self.epoch, num_rows, is_end)
        self.has_slot = False
        try:
            wake(self.job.wake_reader)
        except BrokenPipeError:
            raise _Ended from None

    def _is_left(self) -> bool:
        return self.counters.wanted_epoch > self.epoch

    def _wait(self, condition: Any) -> None:
        """Wait until a condition holds; the reader wakes us when it has changed something."""
        while not condition():
            # The pipe ends with the reader; but processes that it forked may hold its other end, hence the counter.
            if self.counters.is_stopped or not os.read(self.job.wake_worker.fileno(), 4096):
                raise _Ended

    def _make_ring(self, element: Any) -> None:
        """Make the memory for batches like this one, and tell the reader of it."""
        layout = Layout.of(element, self.job.rebatched_size)
        self.ring = Ring(layout, self.job.num_slots)
        self.job.report.send(("layout", layout))
        reduction.send_handle(self.job.report, self.ring.file, os.getppid())
        self.ring.close_file()


def wake(connection: Connection) -> None:
    """Wake the process at the other end, if it waits.

    Args:
        connection: The end to write to; it does not block.
    """
    # A full pipe holds wake-ups enough.
    with contextlib.suppress(BlockingIOError):
        os.write(connection.fileno(), b"!")
