"""`SGD` with PopTorch's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchipu.poptorch._logging import logger
from torchipu.poptorch.optim.arguments import checked_norm, present
from torchipu.poptorch.optim.optimizer import Optimizer


class SGD(Optimizer, torch.optim.SGD):
    """`torch.optim.SGD` with PopTorch's arguments; the three variants of PopTorch compute the same here.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, as the arguments after it those of torch.
        momentum: Of the velocity.
        dampening: Takes so much of each gradient off, weight decay included, as PopART does: of the first one, and
            without momentum, too. torch takes the first gradient whole, and ignores dampening without momentum.
        weight_decay: Added to the gradient.
        nesterov: Whether the velocity looks ahead.
        maximize: Whether to climb.
        foreach: Of no effect.
        differentiable: Must be False.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        velocity_scaling: Of no effect on values.
        use_combined_accum: One tensor for accumulator and velocity; of no effect on values.
        accum_type: Type of gradient accumulators, float32 or float16.
        velocity_accum_type: Type of velocities.
        max_grad_norm: Norm of all gradients together to which they are clipped; infinity not to clip.

    Raises:
        AssertionError: A type is neither float32 nor float16.
    """

    def __init__(
        self, params: Any, lr: float | None = None, momentum: float | None = None, dampening: float | None = None,
        weight_decay: float | None = None, nesterov: bool | None = None, maximize: bool | None = None,
        foreach: bool | None = None, differentiable: bool | None = None, loss_scaling: float | None = None,
        velocity_scaling: float | None = None, use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None, velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        given = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
            "maximize": maximize, "foreach": foreach, "differentiable": differentiable,
        }
        super().__init__(params, **present(given))
        self._begin(
            {**given, "velocity_scaling": velocity_scaling},
            ("lr", "momentum", "dampening", "weight_decay", "nesterov", "velocity_scaling"), loss_scaling, accum_type,
            velocity_accum_type=velocity_accum_type,
        )
        self.use_combined_accum = bool(use_combined_accum)
        self.velocity_scaling = 1.0 if velocity_scaling is None else velocity_scaling
        if velocity_scaling is not None and not self.use_combined_accum:
            logger.warning("velocity_scaling is ignored unless use_combined_accum is True")
        self.max_grad_norm = checked_norm(max_grad_norm)

    def _group_numbers(self, group: Mapping[str, Any]) -> list[tuple[str, str, float]]:
        rate = float(group["lr"]) * (1.0 - float(group["dampening"]))
        return [("lr", "scaledLearningRate0", rate / self.loss_scaling),
                ("weight_decay", "weightDecayScaleFactor0", 1.0 - rate * float(group["weight_decay"]))]
