"""Host traces: spans by process and thread, from the ``.pvti`` that `torchipu.pvti` writes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from torchipu.errors import ReportError
from torchipu.pvti.schema import FORMAT, VERSION
from torchipu.report.database import MAGIC


class Event:
    """A span of a thread.

    Args:
        label: Its name.
        channel: Its row.
        timestamp: Microseconds from the begin of the trace.
        duration: Microseconds.
    """

    def __init__(self, label: str, channel: str, timestamp: float, duration: float) -> None:
        self.label = label
        self.channel = channel
        self.timestamp = timestamp
        self.duration = duration
        self._children: list[Event] = []

    def children(self) -> Sequence[Event]:
        """Return the spans right within it, in order of time."""
        return self._children

    def __repr__(self) -> str:
        return f"Event({self.label!r}, {self.duration:.1f} us)"


class Thread(NamedTuple):
    """A thread.

    Attributes:
        tid: The system's number.
        name: Its name.
        events: Spans that lie in no other, in order of time.
    """

    tid: int
    name: str
    events: Sequence[Event]


class Process(NamedTuple):
    """A process.

    Attributes:
        pid: The system's number.
        name: Of its program.
        began: Microseconds since 1970 at which its trace began.
        threads: Those with spans.
    """

    pid: int
    name: str
    began: int
    threads: Sequence[Thread]

    def thread(self, tid: int) -> Thread:
        """Return a thread.

        Raises:
            KeyError: There is none of this number.
        """
        for one in self.threads:
            if one.tid == tid:
                return one
        raise KeyError(f"there is no thread {tid}: process {self.pid} has {[one.tid for one in self.threads]}")


class Sample(NamedTuple):
    """A value of a graph.

    Attributes:
        graph: Its graph.
        unit: Of the value.
        series: The line of the graph.
        timestamp: Microseconds from the begin of the trace.
        value: At that time.
    """

    graph: str
    unit: str
    series: str
    timestamp: float
    value: float


class Trace(NamedTuple):
    """A trace.

    Attributes:
        processes: Of the file, which is one.
        samples: Values of graphs, in order of time.
    """

    processes: Sequence[Process]
    samples: Sequence[Sample]

    def process(self, pid: int) -> Process:
        """Return a process.

        Raises:
            KeyError: There is none of this number.
        """
        for one in self.processes:
            if one.pid == pid:
                return one
        raise KeyError(f"there is no process {pid}: the trace has {[one.pid for one in self.processes]}")


def openTrace(path: str | os.PathLike[str]) -> Trace:
    """Open a trace.

    Args:
        path: A ``.pvti`` that torchipu wrote, of a program that has ended or still runs.

    Raises:
        FileNotFoundError: There is no such file.
        ReportError: It is empty, damaged, of another program, or of another version.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no trace {file}")
    with file.open("rb") as opened:
        begin = opened.read(len(MAGIC))
    if not begin:
        raise ReportError(f"{file} is empty", remedy="the run that wrote it was stopped: run it again")
    if begin != MAGIC:
        raise _foreign(file, "is no trace of torchipu")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            _check_format(connection, file)
            return Trace(list(_processes(connection)), list(_samples(connection)))
    except (sqlite3.DatabaseError, TypeError, ValueError, KeyError) as error:
        raise ReportError(f"{file} is damaged: {error}", remedy="run the program again with its trace on") from error


def _check_format(connection: sqlite3.Connection, file: Path) -> None:
    held = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'format'").fetchone()[0]
    found = connection.execute("SELECT name, version FROM format").fetchone() if held else None
    if found is None or found[0] != FORMAT:
        raise _foreign(file, "is a database, but no trace of torchipu")
    if found[1] != VERSION:
        raise ReportError(
            f"{file} has version {found[1]} of the format, and this torchipu reads {VERSION}",
            remedy="use the torchipu that wrote it, or a newer one",
        )


def _foreign(file: Path, what: str) -> ReportError:
    return ReportError(
        f"{file} {what}", remedy="give a .pvti that torchipu wrote; those of PopVision have a format of their own",
    )


def _processes(connection: sqlite3.Connection) -> Iterator[Process]:
    channels = dict(connection.execute("SELECT number, name FROM channels"))
    spans: dict[int, list[tuple[int, Event]]] = {}
    # The longer of two that begin together holds the other; of equal ones, that which ended last.
    order = 'SELECT tid, channel, label, "begin", "end" FROM events ORDER BY "begin", "end" DESC, rowid DESC'
    for tid, channel, label, begin, end in connection.execute(order):
        event = Event(label, channels[channel], begin / 1000, (end - begin) / 1000)
        spans.setdefault(tid, []).append((end, event))
    named = connection.execute("SELECT tid, name FROM threads")
    threads = [Thread(tid, name, _nested(spans.get(tid, []))) for tid, name in named]
    for pid, name, began in connection.execute("SELECT pid, name, began FROM processes"):
        yield Process(pid, name, began, threads)


def _nested(spans: list[tuple[int, Event]]) -> list[Event]:
    """Put spans, each with its end, into those that they lie in, and return the others."""
    top: list[Event] = []
    around: list[tuple[int, Event]] = []
    for end, event in spans:
        while around and around[-1][0] < end:
            around.pop()
        (around[-1][1]._children if around else top).append(event)
        around.append((end, event))
    return top


def _samples(connection: sqlite3.Connection) -> Iterator[Sample]:
    order = "SELECT graph, unit, series, at, value FROM samples ORDER BY at, rowid"
    for graph, unit, series, at, value in connection.execute(order):
        yield Sample(graph, unit, series, at / 1000, value)
