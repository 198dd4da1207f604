"""Takes spans and samples of this process, and writes them to its ``.pvti`` now and then."""

from __future__ import annotations

import atexit
import os
import sqlite3
import sys
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

from torchipu import forks
from torchipu.pvti.schema import FORMAT, SUFFIX, TABLES, VERSION

MOST_HELD = 4096
"""Rows that wait in memory at most."""
MOST_SECONDS = 2.0
"""How long they wait at most, while new ones come."""


class Recorder:
    """The trace of a process.

    A trace never stops the program: where its file cannot be written, one warning says so, and what follows is lost.

    Args:
        directory: Where the file goes; it is made.
    """

    def __init__(self, directory: Path) -> None:
        self._lock = forks.lock()
        self._began_ns = time.perf_counter_ns()
        self._began_us = time.time_ns() // 1000
        name = Path(sys.argv[0]).stem or "python"
        stamp = time.strftime("%Y%m%d_%H%M%S")
        self.pid = os.getpid()
        self.path = directory / f"{name}__{stamp}_{self._began_us % 1_000_000:06}__{self.pid}{SUFFIX}"
        self._name = name
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._held = 0
        self._written = time.monotonic()
        self._threads: set[int] = set()
        self._channels: dict[str, int] = {}
        self._is_broken = False
        self._is_begun = False

    def now(self) -> int:
        """Return nanoseconds since the trace began."""
        return time.perf_counter_ns() - self._began_ns

    def add_span(self, channel: str, label: str, begin: int, end: int) -> None:
        """Add a span of this thread.

        Args:
            channel: Its row.
            label: Its name.
            begin: Nanoseconds.
            end: Nanoseconds.
        """
        thread = threading.current_thread()
        tid = thread.native_id or 0
        with self._lock:
            if tid not in self._threads:
                self._threads.add(tid)
                self._add("threads", (tid, thread.name))
            if channel not in self._channels:
                self._channels[channel] = len(self._channels)
                self._add("channels", (self._channels[channel], channel))
            self._add("events", (tid, self._channels[channel], label, begin, end))
            self._write_now_and_then()

    def add_sample(self, graph: str, unit: str, series: str, value: float) -> None:
        """Add a value that a series has now."""
        with self._lock:
            self._add("samples", (graph, unit, series, self.now(), value))
            self._write_now_and_then()

    def flush(self) -> None:
        """Write what waits."""
        with self._lock:
            self._write()

    def _add(self, table: str, row: tuple[Any, ...]) -> None:
        self._rows.setdefault(table, []).append(row)
        self._held += 1

    def _write_now_and_then(self) -> None:
        if self._held >= MOST_HELD or time.monotonic() - self._written > MOST_SECONDS:
            self._write()

    def _write(self) -> None:
        rows, self._rows, self._held = self._rows, {}, 0
        self._written = time.monotonic()
        if self._is_broken or not rows:
            return
        try:
            if not self._is_begun:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path)) as connection, connection:
                if not self._is_begun:
                    self._begin(connection)
                    self._is_begun = True
                for table, held in rows.items():
                    marks = ", ".join("?" for _ in held[0])
                    connection.executemany(f"INSERT INTO {table} VALUES ({marks})", held)
        except (OSError, sqlite3.Error) as error:
            self._is_broken = True
            warnings.warn(f"the trace {self.path} cannot be written, and ends here: {error}", stacklevel=2)

    def _begin(self, connection: sqlite3.Connection) -> None:
        for table in TABLES:
            connection.execute(table)
        connection.execute("INSERT INTO format VALUES (?, ?)", (FORMAT, VERSION))
        connection.execute("INSERT INTO processes VALUES (?, ?, ?)", (self.pid, self._name, self._began_us))


_RECORDERS: dict[Path, Recorder] = {}
_LOCK = forks.lock()


def recorder_of(directory: Path) -> Recorder:
    """Return the recorder of this process that writes to a folder."""
    with _LOCK:
        if directory not in _RECORDERS:
            _RECORDERS[directory] = Recorder(directory)
        return _RECORDERS[directory]


def flush() -> None:
    """Write what waits, of all recorders of this process."""
    for recorder in list(_RECORDERS.values()):
        recorder.flush()


def _begin_anew() -> None:
    """Let a child process write files of its own: what waited in its parent is written there."""
    _RECORDERS.clear()


atexit.register(flush)
os.register_at_fork(after_in_child=_begin_anew)
