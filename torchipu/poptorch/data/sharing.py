"""Loaders of which each process reads a share."""

from __future__ import annotations

import weakref
from typing import Any

SHARERS: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""Loaders of which each process reads a share, and whether they shuffle."""


def note_sharing(loader: Any, *, shuffles: bool) -> None:
    """Remember a loader of which each process reads a share; its options have the seed.

    Args:
        loader: Looked at until it goes.
        shuffles: Whether it shuffles, alike in all processes.
    """
    SHARERS[loader] = shuffles
