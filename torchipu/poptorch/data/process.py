"""Makes the process that reads data ahead, watches over it, and ends it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import connection, reduction, sharedctypes
from multiprocessing import util as multiprocessing_util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.multiprocessing
import torch.utils.data

from torchipu.poptorch._logging import logger
from torchipu.poptorch.data import stack_traces, threads_at_fork
from torchipu.poptorch.data.fork_server import ServedProcess
from torchipu.poptorch.data.ring import Counters, Ring
from torchipu.poptorch.data.worker import Ends, Job, run, wake
from torchipu.poptorch.enums import SharingStrategy
from torchipu.poptorch.poptorch_core import createPoptorchError

GRACE_SECONDS = 5.0
"""How long a process may go on with what it does once it is asked to end."""
POLITE_SECONDS = 10.0
"""How long it may take to end once it is told to."""
STATUS_SECONDS = 1.0
"""How long a server of forks may take to tell with what status a process has ended."""
SLOW_SECONDS = 60.0
"""How long a batch may take before a warning says where its process is."""
EXIT_PRIORITY = 10
"""Before multiprocessing joins the processes that are left, which would wait for ever."""
GUARD_HINT = 'A script that makes loaders needs its main part under if __name__ == "__main__"'

_OURS: weakref.WeakSet[Connection] = weakref.WeakSet()
"""Our ends of what we share with workers. A forked worker closes those of all: one that held them would keep others
from seeing that we have ended."""


class DataProcess:
    """A process that fills a ring.

    Args:
        job: What it is to do.
        strategy: How it is made and given the data.
        is_going: Whether it begins before it is asked for data.
        timeout: How many seconds a batch may take; 0 for any time.

    Raises:
        Error: It did not start, or the data gave no first element.
    """

    def __init__(self, job: Job, strategy: SharingStrategy, *, is_going: bool, timeout: float) -> None:
        self.timeout = timeout
        array = sharedctypes.RawArray(ctypes.c_int64, Counters.size(job.num_slots))
        self.counters = Counters(array, job.num_slots)
        self.counters.is_going = is_going
        self._woken, wake_reader = multiprocessing.Pipe(duplex=False)
        wake_worker, self._wake_worker = multiprocessing.Pipe(duplex=False)
        alive, self._life = multiprocessing.Pipe(duplex=False)
        self._report, report = multiprocessing.Pipe(duplex=True)
        self._traces, traces = multiprocessing.Pipe(duplex=False)
        os.set_blocking(self._wake_worker.fileno(), False)
        ours = (self._woken, self._wake_worker, self._life, self._report, self._traces)
        theirs = (wake_reader, wake_worker, alive, report, traces)
        _OURS.update(ours)
        try:
            self._process = _start(job, Ends(array, *theirs, parent=None, not_ours=()), strategy)
        except BaseException:
            for end in (*ours, *theirs):
                end.close()
            raise
        for end in theirs:
            end.close()
        self.pid = self._process.pid
        self._ended = _Sentinel(self._process)
        self.end: Callable[[], object] = multiprocessing_util.Finalize(
            self, _end, (self._process, self._ended, self.counters, self._wake_worker, ours),
            exitpriority=EXIT_PRIORITY,
        )
        try:
            self.ring = self._receive_ring(job.num_slots)
        except BaseException:
            self.end()
            raise

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return not self._ended.wait(0)

    def wake(self) -> None:
        """Have it look at the counters again."""
        try:
            wake(self._wake_worker)
        except OSError:
            return  # It has ended; whoever waits for it next says so.

    def wait(self, is_there: Callable[[], bool]) -> None:
        """Wait until there is something to read.

        Args:
            is_there: Whether there is.

        Raises:
            AssertionError: There will be nothing, for the process has ended, or takes too long.
        """
        patience = self._patience()
        while not is_there():
            ready = patience.wait(self._woken)
            if self._woken in ready and os.read(self._woken.fileno(), 4096):
                continue
            if ready and not is_there():
                raise AssertionError(f"An error occurred in the data fetcher: {self._reason()}")
            if patience.is_at_end and not is_there():
                raise AssertionError(f"An error occurred in the data fetcher: {self._whereabouts(self.timeout)}")

    def _patience(self) -> _Patience:
        return _Patience(self._ended.handle, self.timeout, self._whereabouts)

    def _receive_ring(self, num_slots: int) -> Ring:
        """Wait for the memory, which the process makes when it has seen its first element.

        Its limit is for data: until it runs, which takes a busy machine seconds, it may take any time.
        """
        try:
            what, value = self._received(_Patience(self._ended.handle, 0, self._whereabouts))
            if what == "running":
                what, value = self._received(self._patience())
            if what == "layout":
                ring = Ring(value, num_slots, reduction.recv_handle(self._report))
                ring.close_file()
                return ring
            sys.stderr.write(value)  # what the worker has for it may be elsewhere: it is that of the server of forks
            reason = f"the worker raised\n{value}"
        except (EOFError, OSError):
            reason = self._reason()
        raise createPoptorchError(f"worker thread failed to start (Check above for details): {reason}")

    def _received(self, patience: _Patience) -> tuple[str, Any]:
        """Return what the process tells next of its beginning.

        Raises:
            EOFError: It has ended.
            Error: It takes too long.
        """
        while self._report not in (ready := patience.wait(self._report)):
            if ready:
                raise EOFError
            if patience.is_at_end:
                raise createPoptorchError(f"worker thread failed to start: {self._whereabouts(self.timeout)}")
        told: tuple[str, Any] = self._report.recv()
        return told

    def _reason(self) -> str:
        """Say why the process has ended."""
        try:
            if self._report.poll():
                text = self._report.recv()[1]
                sys.stderr.write(text)
                return f"the worker raised\n{text}"
        except (EOFError, OSError):
            pass
        self._ended.wait(POLITE_SECONDS)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"the worker was ended by signal {-code}"
        return f"the worker ended with status {code}. {GUARD_HINT}"

    def _whereabouts(self, seconds: float) -> str:
        assert self.pid is not None
        return f"no batch for {seconds:g} s, {stack_traces.ask(self.pid, self._traces)}"


class _Patience:
    """Waits for the process, as long as it may take, and warns when that is long.

    Args:
        ended: Readable when it has ended.
        timeout: How many seconds it may take; 0 for any time.
        whereabouts: Says where it is, after so many seconds.
    """

    def __init__(self, ended: int, timeout: float, whereabouts: Callable[[float], str]) -> None:
        self._ended, self._timeout, self._whereabouts = ended, timeout, whereabouts
        self._began = time.monotonic()
        self._has_warned = False

    @property
    def is_at_end(self) -> bool:
        """Whether the process has taken longer than it may."""
        return 0 < self._timeout <= time.monotonic() - self._began

    def wait(self, pipe: Connection) -> list[Any]:
        """Return what is ready of a pipe and the end of the process; nothing after a while without either."""
        waited = time.monotonic() - self._began
        limits = [self._timeout - waited] if self._timeout else []
        if not self._has_warned:
            limits.append(SLOW_SECONDS - waited)
        ready = connection.wait([pipe, self._ended], max(0.0, min(limits)) if limits else None)
        if not ready and not self._has_warned and time.monotonic() - self._began >= SLOW_SECONDS:
            self._has_warned = True
            logger.warning("Waiting for the loader: %s", self._whereabouts(SLOW_SECONDS))
        return ready


class _Sentinel:
    """Knows when a process has ended; the pipe that `multiprocessing` watches is held by those that it has forked too.

    Args:
        process: One that has been started.
    """

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        assert process.pid is not None
        try:
            self._descriptor: int | None = os.pidfd_open(process.pid)
        except OSError:  # It has ended before, and its server has seen to it; or the system does not know these.
            self._descriptor = None

    @property
    def handle(self) -> int:
        """Readable when the process has ended."""
        return self._process.sentinel if self._descriptor is None else self._descriptor

    def wait(self, seconds: float) -> bool:
        """Wait until the process has ended; return whether it has."""
        if self._process.exitcode is not None:
            return True
        if not connection.wait([self.handle], seconds):
            return False
        until = time.monotonic() + STATUS_SECONDS
        while self._process.exitcode is None and time.monotonic() < until:
            time.sleep(0.001)  # until its server, if it has one, has told us
        return True

    def close(self) -> None:
        """Let go of it; the process has ended."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _start(job: Job, ends: Ends, strategy: SharingStrategy) -> BaseProcess:
    """Make the process."""
    if strategy in (SharingStrategy.SharedMemory, SharingStrategy.FileSystem):
        return _started(torch.multiprocessing.get_context("spawn").Process, job, ends)
    if strategy is SharingStrategy.ForkServer and (missed := threads_at_fork.missed_by_a_fork()):
        try:
            return _started(ServedProcess, job, ends)
        except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
            logger.warning(
                "The data cannot be sent to a server of forks (%s), so the worker is forked from this process, though "
                "that has other threads (%s): if it hangs, make the loader before them.", error, ", ".join(missed),
            )
    _warm_up()
    # A new process is ended with the thread that made it: with this one, if it lives as long as the program.
    ends.parent = os.getpid() if threading.current_thread() is threading.main_thread() else None
    ends.not_ours = tuple(end for end in _OURS if not end.closed)
    return _started(multiprocessing.get_context("fork").Process, job, ends)


@functools.cache
def _warm_up() -> None:
    """Do here once what torch does for the first batch in a process; forked workers would each do it anew."""
    data = [torch.zeros(1), torch.zeros(1)]
    # A generator, so that nothing is drawn from that of the program.
    for _ in torch.utils.data.DataLoader(data, batch_size=2, generator=torch.Generator()):  # type: ignore[arg-type]
        pass


def _started(make: Callable[..., BaseProcess], job: Job, ends: Ends) -> BaseProcess:
    process = make(target=run, args=(job, ends), name="poptorch data")
    try:
        process.start()
    except (BrokenPipeError, EOFError, ConnectionError) as error:  # it has ended before it had read what it was given
        raise createPoptorchError(f"worker thread failed to start ({error!r}). {GUARD_HINT}") from error
    return process


def _end(
    process: BaseProcess, ended: _Sentinel, counters: Counters, wake_worker: Connection, ours: tuple[Connection, ...]
) -> None:
    """End a worker: ask, and if it does not listen, make it."""
    counters.is_stopped = True
    with contextlib.suppress(OSError):  # It has ended already.
        wake(wake_worker)
    if not ended.wait(GRACE_SECONDS):
        process.terminate()
        if not ended.wait(POLITE_SECONDS):
            process.kill()
            ended.wait(POLITE_SECONDS)
    ended.close()
    process.join(0)  # multiprocessing forgets it
    for end in ours:
        end.close()
