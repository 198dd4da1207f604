"""The process that fills the ring of an `AsynchronousDataAccessor`.

It ends with its parent, whatever it is at: the system sees to that.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import multiprocessing
import multiprocessing.util
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
import numpy.random  # which numpy does not import by itself, and every worker would
import torch

from torchipu.poptorch.arguments.structure import ICustomArgParser, registerCustomArgParser
from torchipu.poptorch.data import stack_traces
from torchipu.poptorch.data.ring import Counters, Layout, Ring, flatten

SET_SIGNAL_OF_PARENTS_DEATH = 1
"""PR_SET_PDEATHSIG of the system's ``prctl``."""
_LIBC = ctypes.CDLL(None)
HANDLED_BY_THE_PARENT = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(slots=True)
class Job:
    """What the worker is to do.

    Attributes:
        source: The data.
        seed: For the generators of random numbers in this process.
        num_slots: Slots of the ring.
        rebatched_size: Rows of a batch that is joined of pieces; None to pass elements on.
        drop_last: Whether to leave out rows at the end that fill no batch.
        load_indefinitely: Whether to begin the next epoch before it is asked for.
        parsers: Of the user's classes, as `registerCustomArgParser` was given them.
        start_method: How processes are made that the data makes, workers of a torch DataLoader among them.
    """

    source: Any
    seed: int
    num_slots: int
    rebatched_size: int | None
    drop_last: bool
    load_indefinitely: bool
    parsers: dict[type, ICustomArgParser]
    start_method: str


@dataclass(slots=True)
class Ends:
    """What the worker holds of all that it shares with its parent.

    Attributes:
        counters: Shared integers.
        wake_reader: Written to when there is something to read.
        wake_worker: Read from: there is a free slot, or another epoch is wanted.
        alive: Nothing is written to it, and it ends with the parent.
        report: Layout and memory of the ring, and what went wrong.
        traces: Written to when somebody asks where the worker is.
        parent: Id of the process that has forked this one and whose main thread lives as long as it; else None.
        not_ours: The parent's ends of these and of other workers', which a forked process holds too.
    """

    counters: ctypes.Array[ctypes.c_int64]
    wake_reader: Connection
    wake_worker: Connection
    alive: Connection
    report: Connection
    traces: Connection
    parent: int | None
    not_ours: tuple[Connection, ...]


class _Ended(BaseException):
    """The reader is gone, or wants no more."""


def run(job: Job, ends: Ends) -> None:
    """Fill the ring until the reader wants no more; what the process does from its beginning.

    Args:
        job: What to do.
        ends: What it holds in common with its parent.
    """
    # What was there before is not looked through for garbage: that would copy the pages it lies in.
    gc.freeze()
    _leave_parent(ends)
    # Processes are made as in the parent, not as this one was made: by default they are forked.
    multiprocessing.set_start_method(job.start_method, force=True)
    # One thread, as in torch's own workers: a forked process hangs in the pool of its parent otherwise.
    torch.set_num_threads(1)
    _seed(job.seed)
    for kind, parser in job.parsers.items():
        registerCustomArgParser(kind, parser)
    stack_traces.offer(ends.traces)
    status = 0
    try:
        ends.report.send(("running", None))  # from now on the reader's limit counts
        _Worker(job, ends).run()
    except _Ended:
        pass
    except BaseException:
        status = 1
        text = traceback.format_exc()
        try:
            ends.report.send(("error", text))  # the reader writes it to where users look
        except OSError:
            sys.stderr.write(text)
    _exit(status)


def _leave_parent(ends: Ends) -> None:
    """Let go of what a forked process has of its parent, and see to it that nobody outlives whom he works for."""
    for connection in ends.not_ours:
        connection.close()
    if ends.parent is not None:
        _die_with(ends.parent)
    _die_with_pipe(ends.alive)
    # Those that a worker of a torch DataLoader watches for by itself, every five seconds, and not while it reads.
    os.register_at_fork(before=_note_parent, after_in_child=_die_with_noted_parent)
    # Ctrl-C in a terminal reaches every process: the reader decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    for number in HANDLED_BY_THE_PARENT:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    os.set_blocking(ends.wake_reader.fileno(), False)


def _die_with(parent: int) -> None:
    """Have the system end this process when the thread ends that forked it."""
    _LIBC.prctl(SET_SIGNAL_OF_PARENTS_DEATH, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it has ended before


def _die_with_pipe(pipe: Connection) -> None:
    """Have the system end this process when nobody can write to a pipe any more."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(pipe.fileno(), fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe.fileno(), fcntl.F_SETFL, fcntl.fcntl(pipe.fileno(), fcntl.F_GETFL) | os.O_ASYNC)
    if pipe.poll():
        os._exit(1)  # nobody could before


_forking: int | None = None


def _note_parent() -> None:
    """Before a fork, note who forks; not where another thread does, which may end before the process does."""
    global _forking
    _forking = os.getpid() if threading.current_thread() is threading.main_thread() else None


def _die_with_noted_parent() -> None:
    if _forking is not None:
        _die_with(_forking)


def _seed(seed: int) -> None:
    """Seed all generators, as torch seeds those of its own workers: numpy's would begin alike in all of them."""
    torch.default_generator.manual_seed(seed)  # of torch's, that of the CPU alone: looking for the others takes longer
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])


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
        ends: What the process holds in common with its parent.
    """

    def __init__(self, job: Job, ends: Ends) -> None:
        self.job, self.ends = job, ends
        self.counters = Counters(ends.counters, job.num_slots)
        self.ring: Ring | None = None
        self.epoch = 0
        self.rows = 0  # of the batch that is being joined
        self.has_slot = False

    def run(self) -> None:
        """Read epoch after epoch; ends with `_Ended` only."""
        source = self.job.source
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
        if not same and (not (len(capacity) == len(rows) == 1) or not max(rows) < max(capacity)):
            raise AssertionError(
                f"Every element of the data must be of the same size: the first had {ring.layout.shapes}, and this has "
                f"{[list(tensor.shape) for tensor in tensors]}"
            )
        if self._take_slot():
            ring.write(self.counters.produced % self.job.num_slots, 0, tensors)
            self._give(-1 if same else max(rows))

    def _join(self, ring: Ring, tensors: Sequence[torch.Tensor], size: int) -> None:
        """Add rows to the batch that is being joined; those beyond its end begin the next one."""
        given = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors}
        if len(given) != 1 or given == {0}:
            raise AssertionError(
                "To be joined, the tensors of an element need equally many rows, not "
                f"{[list(t.shape) for t in tensors]}"
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
            wake(self.ends.wake_reader)
        except BrokenPipeError:
            raise _Ended from None

    def _is_left(self) -> bool:
        return self.counters.wanted_epoch > self.epoch

    def _wait(self, condition: Any) -> None:
        """Wait until a condition holds; the reader wakes us when it has changed something."""
        while not condition():
            # The pipe ends with the reader; but processes that it forked may hold its other end, hence the counter.
            if self.counters.is_stopped or not os.read(self.ends.wake_worker.fileno(), 4096):
                raise _Ended

    def _make_ring(self, element: Any) -> None:
        """Make the memory for batches like this one, and tell the reader of it."""
        layout = Layout.of(element, self.job.rebatched_size)
        self.ring = Ring(layout, self.job.num_slots)
        self.ends.report.send(("layout", layout))
        reduction.send_handle(self.ends.report, self.ring.file, os.getppid())
        self.ring.close_file()


def wake(connection: Connection) -> None:
    """Wake the process at the other end, if it waits.

    Args:
        connection: The end to write to; it does not block.
    """
    # A full pipe holds wake-ups enough.
    with contextlib.suppress(BlockingIOError):
        os.write(connection.fileno(), b"!")
