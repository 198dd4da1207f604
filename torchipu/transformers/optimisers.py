"""Optimisers of ``poptorch.optim`` from training arguments."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import torch

from torchipu import poptorch
from torchipu.errors import OptionsError
from torchipu.transformers.configuration import IPUConfig

ADAMW = ("adamw_torch", "adamw_torch_fused")


def make_optimiser(groups: Sequence[dict[str, Any]], arguments: Any, ipu_config: IPUConfig) -> torch.optim.Optimizer:
    """Return the optimiser that training arguments name.

    Args:
        groups: Groups of parameters, with their weight decay.
        arguments: An `IPUTrainingArguments`.
        ipu_config: Says the type of first moments.

    Raises:
        OptionsError: It is of no kind that ``poptorch.optim`` has.
    """
    optim, name = poptorch.optim, str(getattr(arguments.optim, "value", arguments.optim))
    is_half = any(one.dtype == torch.float16 for group in groups for one in group["params"])
    first = torch.float16 if is_half and ipu_config.enable_half_first_order_momentum else torch.float32
    common: dict[str, Any] = {
        "lr": arguments.learning_rate, "loss_scaling": arguments.loss_scaling,
        "accum_type": torch.float16 if is_half else torch.float32,
    }
    moments: dict[str, Any] = {
        "first_order_momentum_accum_type": first, "second_order_momentum_accum_type": torch.float32,
    }
    adam = {"betas": (arguments.adam_beta1, arguments.adam_beta2), "eps": arguments.adam_epsilon}
    clipping = {"max_grad_norm": arguments.max_grad_norm} if arguments.max_grad_norm else {}
    # Every weight decay is in a group; what the constructor is not given counts as a constant there.
    groups = [group for group in groups if group["params"]]
    if arguments.lamb or arguments.lamb_no_bias_correction:
        has_correction = not arguments.lamb_no_bias_correction
        made = optim.LAMB(groups, **common, **moments, **adam, bias_correction=has_correction)
    elif name == "sgd":
        made = optim.SGD(groups, **common, velocity_accum_type=first, **clipping, **_given(arguments, ("momentum",)))
    elif name == "rmsprop":
        made = optim.RMSprop(groups, **common, **moments, **_given(arguments, ("momentum", "alpha", "eps")))
    elif name in ADAMW:
        made = optim.AdamW(groups, **common, **moments, **adam, **clipping)
    else:
        raise OptionsError(
            f"optim={name!r} is not one that weights are updated by on the IPU", option="optim", value=name,
            allowed=", ".join((*ADAMW, "sgd", "rmsprop")),
            remedy="choose one of these, lamb=True, or give the Trainer optimizers=(optimizer, None)",
        )
    return made


def _given(arguments: Any, names: Sequence[str]) -> dict[str, float]:
    """Return the numbers that ``optim_args`` holds, as in ``momentum=0.9,alpha=0.99``."""
    pairs = (pair.partition("=") for pair in (arguments.optim_args or "").replace(" ", "").split(",") if pair)
    return {name: float(value) for name, _, value in pairs if name in names}


def leave_to_device(optimiser: torch.optim.Optimizer) -> None:
    """Let ``step`` do nothing: the weights are updated on the device, and looking for gradients would fetch them.

    Args:
        optimiser: Of `poptorch.optim` or of torch.
    """
    optimiser.step = types.MethodType(_step, optimiser)  # type: ignore[method-assign]


def give_back(optimiser: torch.optim.Optimizer) -> None:
    """Undo `leave_to_device`.

    Args:
        optimiser: The optimiser.
    """
    vars(optimiser).pop("step", None)


def _step(optimiser: torch.optim.Optimizer, closure: Any = None) -> None:
    """Count as a step for schedulers."""
