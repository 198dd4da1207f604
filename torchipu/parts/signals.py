"""Signals wait while processes depend on each other: an exception of a handler's could cut a message in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


class Waiting:
    """Signals that have come, whose handlers have not run yet."""

    def __init__(self) -> None:
        self._came: list[tuple[Handler, int, FrameType | None]] = []
        self._before: dict[int, Handler] = {}

    def hold(self) -> None:
        """Let signals that Python handles wait from now on."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python runs handlers in the main thread only
        found = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._before = {number: handler for number, handler in found.items() if callable(handler)}
        for number, handler in self._before.items():
            signal.signal(number, self._noting(handler))

    def _noting(self, handler: Handler) -> Handler:
        return lambda number, frame: self._came.append((handler, number, frame))

    def release(self) -> None:
        """Let signals be handled as they come again, and handle those that have waited."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        self.handle()

    def handle(self) -> None:
        """Run the handlers of what has come; that of Ctrl-C raises KeyboardInterrupt."""
        while self._came:
            handler, number, frame = self._came.pop(0)
            handler(number, frame)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let signals wait until ``handle`` is called, or until the end."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let signals be handled as they come for a while."""
        try:
            self.release()
            yield
        finally:
            self.hold()
