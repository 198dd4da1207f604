"""What IPUs do not do for a Trainer: refused, or ignored with a warning, in the words of the old integration."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch

ONE_OPTIMIZER = "IPUs currently only support one optimizer."
LBFGS = "IPUs and the LBFGS optimizer are not compatible."
BATCH_SAMPLER = (
    "It is not possible to have a batch sampler in your dataloader, when running on multiple IPU devices."
)


def check_fit(trainer: Any, module: Any, is_overridden: Callable[[str, Any], bool], error: type[Exception]) -> None:
    """Refuse what training cannot do, before anything runs.

    Args:
        trainer: The Trainer.
        module: The Lightning module.
        is_overridden: Lightning's.
        error: Its exception for configurations.

    Raises:
        MisconfigurationException: A step that draws its batches itself.
    """
    check_iterator_steps(module, error)
    if module.automatic_optimization and is_overridden("backward", module):
        warnings.warn(
            f"You have overridden the `backward` hook in `{type(module).__name__}`, but it will be ignored: on IPUs "
            "the backward pass and the optimizer step are part of one program.", stacklevel=2,
        )


def check_iterator_steps(module: Any, error: type[Exception]) -> None:
    """Refuse steps that take an iterator over batches.

    Raises:
        MisconfigurationException: There is one.
    """
    for name in ("training_step", "validation_step", "test_step", "predict_step"):
        step = getattr(module, name, None)
        if step is not None and "dataloader_iter" in inspect.signature(step).parameters:
            raise error(f"`{name}(dataloader_iter)` is not supported on IPUs: let it take a batch")


def check_optimizers(
    optimizers: list[torch.optim.Optimizer], error: type[Exception], *, is_automatic: bool = True,
) -> None:
    """Refuse LBFGS, and several optimisers unless the step calls them itself.

    Args:
        optimizers: What ``configure_optimizers`` gave.
        error: Lightning's exception for configurations.
        is_automatic: Whether Lightning calls the optimiser.

    Raises:
        MisconfigurationException: It is so.
    """
    if is_automatic and len(optimizers) > 1:
        raise error(ONE_OPTIMIZER)
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
        raise error(LBFGS)


def check_batch_sampler(loader: Any, replicas: int, error: type[Exception]) -> None:
    """Refuse a batch sampler of the user's where replicas share the batches.

    Raises:
        MisconfigurationException: There is one.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if replicas > 1 and sampler is not None and type(sampler) is not torch.utils.data.BatchSampler:
        raise error(BATCH_SAMPLER)


def check_manual(options: Any, is_poptorch: bool, error: type[Exception]) -> None:
    """Refuse what a call of the device does several times where the step itself calls its optimisers.

    Args:
        options: poptorch.Options of training.
        is_poptorch: Whether batches of the loader are those of a whole call.
        error: Lightning's exception for configurations.

    Raises:
        MisconfigurationException: Gradients are to be accumulated, or a loader gives several iterations at once.
    """
    accumulation, iterations = options.Training.gradient_accumulation, options.device_iterations
    if accumulation > 1:
        raise error(
            f"training_opts.Training.gradientAccumulation({accumulation}) does not go with `automatic_optimization = "
            "False`: accumulate in `training_step`, by calling `opt.step()` and `opt.zero_grad()` every n-th batch"
        )
    if is_poptorch and iterations > 1:
        raise error(
            f"A poptorch.DataLoader with deviceIterations({iterations}) gives the batches of {iterations} runs of "
            "`training_step` at once, which does not go with `automatic_optimization = False`: leave deviceIterations "
            "at 1, or use a loader of torch's"
        )
