"""A process forks while no other thread of it captures.

What a capture has changed for the whole process, and what torch has half made, would stay so in the child: the thread
that undoes it is not there. Nor is the one that would let go of the lock of `torch.compile`, for which every later
compilation of the child would wait.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from types import FrameType
from typing import Any

from torch._dynamo.convert_frame import compile_lock

LONGEST_SECONDS = 120.0
"""A capture that takes longer may itself wait for who forks: then the child has the lock, and what it finds."""


class _Wait(threading.local):
    """The wait of the fork of a thread.

    An exception of a handler of a signal would be lost here, as Python drops what is raised around a fork: signals that
    come meanwhile come once more behind it.
    """

    def __init__(self) -> None:
        self._has_lock = False
        self._came: list[int] = []
        self._handlers: dict[int, Any] = {}

    def begin(self) -> None:
        """Wait until no other thread captures."""
        self._came, self._handlers = [], {}
        self._has_lock = compile_lock.acquire(blocking=False)
        if not self._has_lock:
            if threading.current_thread() is threading.main_thread():
                for number in signal.valid_signals():
                    handler = signal.getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        signal.signal(number, self._note)
            self._has_lock = compile_lock.acquire(timeout=LONGEST_SECONDS)

    def end_in_parent(self) -> None:
        """Let others capture."""
        self._end()
        for number in self._came:
            _thread.start_new_thread(signal.raise_signal, (number,))  # which handlers follow when this has returned

    def end_in_child(self) -> None:
        """Let the child capture."""
        if not self._has_lock:
            compile_lock._at_fork_reinit()  # type: ignore[attr-defined]
        self._end()

    def _end(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._has_lock:
            compile_lock.release()
        self._has_lock = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)


_wait = _Wait()
os.register_at_fork(before=_wait.begin, after_in_parent=_wait.end_in_parent, after_in_child=_wait.end_in_child)
