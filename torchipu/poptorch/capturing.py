"""Whether a model is being captured or run for the IPU at this moment; executors say so, models and ops ask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_is_on_ipu = False
_is_training = False


def isRunningOnIpu() -> bool:
    """Return whether ``forward`` runs for the IPU; False in a plain call of the same module."""
    return _is_on_ipu


def is_training_on_ipu() -> bool:
    """Return whether ``forward`` runs for a `trainingModel`."""
    return _is_on_ipu and _is_training


@contextlib.contextmanager
def on_ipu(is_training: bool = False) -> Iterator[None]:
    """Let `isRunningOnIpu` answer True within; an executor wraps this around the capture of a model.

    Args:
        is_training: Whether backward ops are wanted.
    """
    global _is_on_ipu, _is_training
    before = _is_on_ipu, _is_training
    _is_on_ipu, _is_training = True, is_training
    try:
        yield
    finally:
        _is_on_ipu, _is_training = before
