"""`trainingModel`, `inferenceModel` and `load`: from a module or a file to an executor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule

from torchipu.poptorch.enums import ConnectionType
from torchipu.poptorch.executor import instrumentation
from torchipu.poptorch.executor.poplar_executor import PoplarExecutor
from torchipu.poptorch.executor.training_session import TrainingSession
from torchipu.poptorch.options import Options
from torchipu.poptorch.stored import executable
from torchipu.poptorch.stored.executable import StoredModel
from torchipu.poptorch.stored.options import options_from_data
from torchipu.poptorch.stored.values import optimiser_from_data


def trainingModel(
    model: Callable[..., Any], options: Options | None = None, optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a model for training.

    The model's parameters and buffers fetch what the device has trained when they are looked at; `destroy` of the
    model or the executor ends that.

    Args:
        model: A module or callable that returns or marks a loss, or another executor.
        options: Frozen from now on.
        optimizer: None for SGD with a learning rate of 0.01.

    Raises:
        RuntimeError: The model is wrapped already.
    """
    model = _unwrapped(model)
    if instrumentation.is_instrumented(model):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to unwrap "
            "before wrapping again."
        )
    if optimizer is None:
        optimizer = _default_optimizer(model)
    return PoplarExecutor(model, options, True, optimizer)


def inferenceModel(model: Callable[..., Any], options: Options | None = None) -> PoplarExecutor:
    """Wrap a model for inference.

    Args:
        model: A module or callable, or another executor.
        options: Frozen from now on.
    """
    return PoplarExecutor(_unwrapped(model), options, False)


def load(
    filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], object] | None = None,
) -> PoplarExecutor:
    """Return the executor that `PoplarExecutor.save` or `compileAndExport` has written.

    Args:
        filename: The file.
        edit_opts_fn: Given the options before they are frozen.

    Raises:
        AssertionError: The file is not valid, or was written without the model.
    """
    try:
        tensors, description = executable.read(filename)
    except ValueError as error:
        raise AssertionError(f"Invalid file {os.fspath(filename)}: {error}") from error
    if not description["has_model"]:
        raise AssertionError(
            f"{os.fspath(filename)} was exported without the model: rebuild the model, wrap it and call "
            "loadExecutable() instead"
        )
    options = options_from_data(description["options"])
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)
    options.deleteIfExists("ipu_version")
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    model = StoredModel(tensors, description)
    optimizer = None
    if description["training"]:
        optimizer = optimiser_from_data(description["optimizer"], tensors, model)
    executor = PoplarExecutor(model, options, description["training"], optimizer)
    executor._poptorch_parts.files.adopt(tensors, description, executor)
    session = executor._session()
    if isinstance(session, TrainingSession) and session.options.automatic_loss_scaling:
        session.set_loss_scale(description["loss_scale"])
    if description["random"] is not None:
        executor.rng_state = description["random"]
    return executor


def _unwrapped(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return what an executor wraps, or what ``torch.compile`` has: it is compiled here, and whole."""
    model = model.model if isinstance(model, PoplarExecutor) else model
    return model._orig_mod if isinstance(model, OptimizedModule) else model


def _default_optimizer(model: Callable[..., Any]) -> torch.optim.Optimizer:
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    # Optimisers refuse an empty list, but a model without parameters can be wrapped.
    optimizer = torch.optim.SGD(parameters or [torch.nn.Parameter(torch.zeros(()))], lr=0.01)
    if not parameters:
        optimizer.param_groups[0]["params"] = []
    return optimizer
