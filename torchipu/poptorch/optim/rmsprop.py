"""`RMSprop` with PopTorch's arguments."""

from __future__ import annotations

from typing import Any

import torch

from torchipu.poptorch.optim.arguments import moment_types, present
from torchipu.poptorch.optim.optimizer import Optimizer


class RMSprop(Optimizer, torch.optim.RMSprop):
    """`torch.optim.RMSprop` with PopTorch's arguments.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, as the arguments after it those of torch.
        alpha: Decay of the mean square.
        eps: Added to its root.
        weight_decay: Added to the gradient.
        momentum: Of the update.
        centered: Whether the mean gradient is taken off; the same in all groups.
        foreach: Of no effect.
        maximize: Whether to climb.
        differentiable: Must be False.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        accum_type: Type of gradient accumulators, float32 or float16.
        first_order_momentum_accum_type: Type of mean gradients.
        second_order_momentum_accum_type: Type of mean squares.
        use_tf_variant: TensorFlow's arithmetic: mean squares begin at 1, ``eps`` is added under the root, and the rate
            is within the momentum. On the host `step` has torch's.

    Raises:
        AssertionError: A type is neither float32 nor float16, or groups differ in ``centered``.
    """

    def __init__(
        self, params: Any, lr: float | None = None, alpha: float | None = None, eps: float | None = None,
        weight_decay: float | None = None, momentum: float | None = None, centered: bool | None = None,
        foreach: bool | None = None, maximize: bool | None = None, differentiable: bool | None = None,
        loss_scaling: float | None = None, accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None, use_tf_variant: bool | None = None,
    ) -> None:
        given = {
            "lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum,
            "centered": centered, "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
        }
        super().__init__(params, **present(given))
        self._begin(
            given, ("lr", "momentum", "weight_decay", "alpha", "eps", "centered"), loss_scaling, accum_type,
            **moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )
        if len({group["centered"] for group in self.param_groups}) != 1:
            raise AssertionError("All parameter groups must have the same value of centered")
        self.use_tf_variant = bool(use_tf_variant)
        for group in self.param_groups:
            group["use_tf_variant"] = self.use_tf_variant  # where the capture of an update looks for it
