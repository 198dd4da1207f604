"""Which optimisers a training model takes."""

from __future__ import annotations

import torch

from torchipu import optim as core
from torchipu.poptorch._logging import logger
from torchipu.poptorch.optim.adam import Adam, AdamW
from torchipu.poptorch.optim.lamb import LAMB
from torchipu.poptorch.optim.rmsprop import RMSprop
from torchipu.poptorch.optim.sgd import SGD

SUPPORTED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, core.LAMB)


def check(optimizer: torch.optim.Optimizer) -> None:
    """Refuse what a training model cannot run.

    Args:
        optimizer: Of torch.optim or of this package.

    Raises:
        AssertionError: Of another kind.
        ValueError: AMSGrad.
        Error: An argument of PopTorch's that cannot run so far.
    """
    if not isinstance(optimizer, SUPPORTED):
        kinds = ", ".join(kind.__name__ for kind in SUPPORTED)
        if isinstance(optimizer, type):
            raise AssertionError(
                f"Unsupported optimizer type type: it is the class {optimizer.__name__} itself. Make one of it, as by "
                f"poptorch.optim.SGD(model.parameters(), lr=0.01). Supported types: {kinds}"
            )
        raise AssertionError(f"Unsupported optimizer type {type(optimizer).__name__}. Supported types: {kinds}")
    if type(optimizer) not in (*SUPPORTED, SGD, Adam, AdamW, RMSprop, LAMB):
        logger.warning(
            "Poptorch does not run Python optimizer code directly. Optimizers that are subclassed from classes in "
            "poptorch.optim or torch.optim are unlikely to behave as intended: the step method of %s is never run, but "
            "the update of the class that it comes from, on the device", type(optimizer).__name__,
        )
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        raise ValueError("Only non-amsgrad Adam/AdamW optimizers are supported.")
    if getattr(optimizer, "use_tf_variant", False) and not isinstance(optimizer, torch.optim.RMSprop):
        raise ValueError("use_tf_variant is an argument of poptorch.optim.RMSprop alone")
