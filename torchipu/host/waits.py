"""How long a thread has waited for the batches of its loaders, for reports to tell it from the user's other code."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Waits(threading.local):
    """Waits of a thread for batches.

    Attributes:
        seconds: Altogether.
        count: How many there were.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0
        self._is_within = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Add the time from entry to exit; a loader that waits for another one waits once."""
        if self._is_within:
            yield
            return
        began, self._is_within = time.perf_counter(), True
        try:
            yield
        finally:
            self._is_within = False
            self.seconds += time.perf_counter() - began
            self.count += 1


WAITS = Waits()
"""Of each thread."""
