"""Keras 3 on its torch backend: a model's layers run on the emulated IPU, in ``fit``, ``evaluate`` and ``predict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchipu.backend import ipu_backend
from torchipu.errors import CaptureError
from torchipu.options import Options


def use_ipu(model: Any, options: Mapping[str, object] | None = None) -> Any:
    """Let the layers of a Keras model run on the emulated IPU from now on.

    Forward and backward are programs for the IPU. The loss, the metrics and the update run as Keras has them, in
    PyTorch on the host. ``torch.compile``'s own ``jit_compile`` of the model is switched off: it would take Inductor.

    Args:
        model: A ``keras.Model``; its ``call`` is replaced. Before or after ``compile``.
        options: As for ``torch.compile(..., backend="ipu", options=...)``.

    Returns:
        The model.

    Raises:
        ImportError: Keras is not installed.
        CaptureError: Keras runs on another backend than torch, or this is no model of Keras's.
        OptionsError: An option is unknown.
    """
    try:
        import keras
    except ImportError as error:
        raise ImportError(
            'torchipu.keras needs Keras 3\n  do      pip install "torchipu[keras]"', name=error.name,
        ) from error
    backend = keras.backend.backend()
    if backend != "torch":
        raise CaptureError(
            f"Keras runs on its backend {backend}, and torchipu emulates the IPU for torch",
            remedy="set KERAS_BACKEND=torch in the environment before Keras is imported",
        )
    if not isinstance(model, keras.Model):
        raise CaptureError(f"use_ipu takes a keras.Model, got {type(model).__name__}")
    given: dict[str, Any] = dict(options or {})
    Options.from_mapping(given)
    model.jit_compile = False
    # Sizes as they come: the last batch of an epoch is often a smaller one, and is a program of its own.
    model.call = torch.compile(model.call, backend=ipu_backend, options=given, dynamic=False)
    return model
