"""The collector of Python's cyclic garbage while graphs and plans are made, which are many objects and few cycles."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

THRESHOLDS = (50_000, 20, 100)
"""Of `gc.set_threshold`. With Python's own the collector walks all that has been made every few thousand objects: a
third of the time that an unrolled loop takes, and more the longer that is."""

_lock = threading.Lock()
_under_way = 0
_found = THRESHOLDS


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the collector look less often meanwhile; where the user has switched it off it stays so."""
    global _under_way, _found
    with _lock:
        if not _under_way:
            _found = gc.get_threshold()
            if _found[0]:  # 0 switches it off
                gc.set_threshold(*map(max, _found, THRESHOLDS))
        _under_way += 1
    try:
        yield
    finally:
        with _lock:  # compilations in several threads may end in any order
            _under_way -= 1
            if not _under_way:
                gc.set_threshold(*_found)
