"""Locks that are free in a child that was forked, where the threads that held them in the parent are not."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> threading.Lock:
    """Return a lock that no thread of a parent holds in a child."""
    made = threading.Lock()
    _LOCKS.add(made)
    return made


def reentrant_lock() -> threading.RLock:
    """Return a lock that a thread may take again which has it; that one has it in a child that it forks, too."""
    made = threading.RLock()
    _LOCKS.add(made)
    return made


def _free() -> None:
    for held in list(_LOCKS):
        if not (hasattr(held, "_is_owned") and held._is_owned()):
            held._at_fork_reinit()  # as Python's own modules do with theirs


os.register_at_fork(after_in_child=_free)
