"""Keras 3 on its torch backend: a model's layers run on the emulated IPU, in ``fit``, ``evaluate`` and ``predict``."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
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
    is_symbolic = _question()
    # Sizes as they come: the last batch of an epoch is often a smaller one, and is a program of its own.
    plain, compiled = model.call, torch.compile(model.call, backend=ipu_backend, options=given, dynamic=False)
    shown = weakref.WeakSet[Any]()

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Keras asks for the shapes of results alone, before it trains: a program of its own would be of no use.
        if is_symbolic():
            return plain(*args, **kwargs)
        _show_numbers(model, shown)
        return compiled(*args, **kwargs)

    model.call = call
    return model


def _show_numbers(model: Any, shown: weakref.WeakSet[Any]) -> None:
    """Let layers hold lists of whole numbers as plain ones, as batch normalisation its axes.

    Those in which Keras would note what is put in are of a class of its own, which Dynamo hands to no operator.

    Args:
        model: Its layers are built when it runs first, or before.
        shown: Layers for which that is done; what is added.
    """
    for layer in model._flatten_layers():
        if layer in shown or not layer.built:
            continue
        shown.add(layer)
        for name, value in list(vars(layer).items()):
            if isinstance(value, list) and type(value) is not list and value and all(type(one) is int for one in value):
                vars(layer)[name] = list(value)


def _question() -> Callable[[], bool]:
    """Return what tells whether Keras is inferring shapes; its releases keep that in a module that may move."""
    try:
        from keras.src.backend import in_symbolic_scope
    except ImportError:
        return lambda: False
    found: Callable[[], bool] = in_symbolic_scope
    return found
