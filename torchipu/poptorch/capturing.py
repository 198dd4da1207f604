"""Whether a model is being captured or run for the IPU at this moment; executors say so, models and ops ask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_is_on_ipu = False


def isRunningOnIpu() -> bool:
    """Return whether ``forward`` runs for the IPU; False in a plain call of the same module."""
    return _is_on_ipu


@contextlib.contextmanager
def on_ipu() -> Iterator[None]:
    """Let `isRunningOnIpu` answer True within; an executor wraps this around the capture of a model."""
    global _is_on_ipu
    before = _is_on_ipu
    _is_on_ipu = True
    try:
        yield
    finally:
        _is_on_ipu = before
