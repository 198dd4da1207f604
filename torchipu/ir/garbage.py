"""The collector of Python's cyclic garbage while graphs and plans are made, which are many objects and few cycles."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

from torchipu import forks

THRESHOLDS = (50_000, 20, 100)
"""Of `gc.set_threshold`. With Python's own the collector walks all that has been made every few thousand objects: a
third of the time that an unrolled loop takes, and more the longer that is."""

_lock = forks.lock()
_under_way: list[int] = []  # the thread of each
_found = THRESHOLDS


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the collector look less often meanwhile; where the user has switched it off it stays so."""
    global _found
    thread = threading.get_ident()
    with _lock:
        if not _under_way:
            _found = gc.get_threshold()
            if _found[0]:  # 0 switches it off
                gc.set_threshold(*map(max, _found, THRESHOLDS))
        _under_way.append(thread)
    try:
        yield
    finally:
        with _lock:  # compilations in several threads may end in any order
            _end([thread])


def _end(threads: list[int]) -> None:
    for thread in threads:
        _under_way.remove(thread)
    if threads and not _under_way:
        gc.set_threshold(*_found)


# What other threads compile ends nowhere in a child that is forked meanwhile.
os.register_at_fork(after_in_child=lambda: _end([one for one in _under_way if one != threading.get_ident()]))
