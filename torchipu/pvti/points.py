"""Channels, trace points and graphs, as programs use them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from torchipu.pvti.recorder import Recorder, recorder_of
from torchipu.pvti.settings import settings


class TraceChannel:
    """A named row of trace points.

    Args:
        name: Its name.

    Raises:
        ReportError: ``PVTI_OPTIONS`` is no JSON object.
    """

    def __init__(self, name: str) -> None:
        self.name = str(name)
        self._settings = settings()

    @property
    def recorder(self) -> Recorder | None:
        """What takes its spans in this process; None where traces are off."""
        return recorder_of(self._settings.directory) if self._settings.is_on else None


def createTraceChannel(name: str) -> TraceChannel:
    """Return a channel; it writes if ``PVTI_OPTIONS`` asks for traces at this moment.

    Args:
        name: Its name.

    Raises:
        ReportError: ``PVTI_OPTIONS`` is no JSON object.
    """
    return TraceChannel(name)


_OPEN = threading.local()
"""Spans of a thread that `Tracepoint.begin` has begun: begins by recorder, channel and label."""


class Tracepoint:
    """A span from entry to exit of a ``with`` block.

    Args:
        channel: Where it is drawn.
        label: Its name.
    """

    def __init__(self, channel: TraceChannel, label: str) -> None:
        self._channel = channel
        self._label = str(label)
        self._recorder: Recorder | None = None
        self._begin = 0

    def __enter__(self) -> Self:
        self._recorder = self._channel.recorder
        self._begin = self._recorder.now() if self._recorder is not None else 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        recorder = self._channel.recorder
        # A child process has a recorder of its own, with a clock of its own: what its parent began is its parent's.
        if recorder is not None and recorder is self._recorder:
            recorder.add_span(self._channel.name, self._label, self._begin, recorder.now())

    @staticmethod
    def begin(channel: TraceChannel, label: str) -> None:
        """Begin a span, which `end` of the same channel and label ends in the same thread."""
        recorder = channel.recorder
        if recorder is not None:
            begins = _OPEN.__dict__.setdefault("begins", {})
            begins.setdefault((recorder, channel.name, str(label)), []).append(recorder.now())

    @staticmethod
    def end(channel: TraceChannel, label: str) -> None:
        """End the last span of a channel and label that was begun in this thread; without one nothing is written."""
        recorder = channel.recorder
        begins = _OPEN.__dict__.get("begins", {}).get((recorder, channel.name, str(label)))
        if recorder is not None and begins:
            recorder.add_span(channel.name, str(label), begins.pop(), recorder.now())

    @staticmethod
    def event(channel: TraceChannel, label: str) -> None:
        """Write a span without length."""
        recorder = channel.recorder
        if recorder is not None:
            now = recorder.now()
            recorder.add_span(channel.name, str(label), now, now)


def instrument(obj: Any, methods: Iterable[str], channel: TraceChannel) -> Any:
    """Put a trace point around methods of an object, labelled by their qualified names.

    Args:
        obj: The object; changed in place.
        methods: Names of its methods.
        channel: Where they are drawn.

    Returns:
        The same object.
    """
    kind = type(obj)
    for name in methods:
        label = f"{kind.__module__}.{kind.__qualname__}.{name}"
        object.__setattr__(obj, name, _traced(getattr(obj, name), label, channel))
    return obj


def _traced(method: Callable[..., Any], label: str, channel: TraceChannel) -> Callable[..., Any]:
    @functools.wraps(method)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with Tracepoint(channel, label):
            return method(*args, **kwargs)

    return traced


class Series:
    """A line of a graph.

    Args:
        graph: Its graph.
        label: Its name.
    """

    def __init__(self, graph: Graph, label: str) -> None:
        self._graph = graph
        self.label = str(label)

    def add(self, value: float) -> None:
        """Note the value of now.

        Raises:
            TypeError: It is no number.
            ValueError: It is no number.
        """
        self._graph._add(self.label, float(value))


class Graph:
    """Values over time.

    Args:
        name: Its name.
        unit: Of the values.

    Raises:
        ReportError: ``PVTI_OPTIONS`` is no JSON object.
    """

    def __init__(self, name: str, unit: str = "") -> None:
        self.name = str(name)
        self.unit = str(unit)
        self._channel = TraceChannel(name)

    def addSeries(self, label: str) -> Series:
        """Return a line of the graph."""
        return Series(self, label)

    def _add(self, series: str, value: float) -> None:
        recorder = self._channel.recorder
        if recorder is not None:
            recorder.add_sample(self.name, self.unit, series, value)
