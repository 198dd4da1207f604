"""Whether a model is being captured or run for the IPU at this moment; executors say so, models and ops ask."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch

_is_on_ipu = False
_is_training = False
_model: torch.nn.Module | None = None

_OF_FAKE_TENSORS = logging.getLogger("torch._subclasses.fake_tensor")
"""Logs a traceback of torch's insides for every op that is refused while a model is captured."""


def isRunningOnIpu() -> bool:
    """Return whether ``forward`` runs for the IPU; False in a plain call of the same module."""
    return _is_on_ipu


def is_training_on_ipu() -> bool:
    """Return whether ``forward`` runs for a `trainingModel`."""
    return _is_on_ipu and _is_training


def model_on_ipu() -> torch.nn.Module | None:
    """Return the model whose ``forward`` is captured for the IPU."""
    return _model


@contextlib.contextmanager
def on_ipu(is_training: bool = False, model: torch.nn.Module | None = None) -> Iterator[None]:
    """Let `isRunningOnIpu` answer True within; an executor wraps this around the capture of a model.

    Args:
        is_training: Whether backward ops are wanted.
        model: What runs.
    """
    global _is_on_ipu, _is_training, _model
    before = _is_on_ipu, _is_training, _model
    _is_on_ipu, _is_training, _model = True, is_training, model
    _OF_FAKE_TENSORS.addFilter(_is_no_traceback)
    try:
        yield
    finally:
        _is_on_ipu, _is_training, _model = before
        if not _is_on_ipu:
            _OF_FAKE_TENSORS.removeFilter(_is_no_traceback)


def _is_no_traceback(record: logging.LogRecord) -> bool:
    """Drop tracebacks: the error itself is raised, in the words of torch's kernels."""
    return record.exc_info is None
