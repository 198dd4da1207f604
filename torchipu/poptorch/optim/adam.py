"""`Adam` and `AdamW` with PopTorch's arguments."""

from __future__ import annotations

from typing import Any

import torch

from torchipu.poptorch.optim.arguments import checked_norm, moment_types, present
from torchipu.poptorch.optim.optimizer import Optimizer

ADAM_ATTRIBUTES = ("lr", "betas", "eps", "weight_decay", "amsgrad")


class Adam(Optimizer, torch.optim.Adam):
    """`torch.optim.Adam` with PopTorch's arguments.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, as the arguments after it those of torch.
        betas: Decays of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Added to the gradient.
        amsgrad: Must be False in a training model.
        foreach: Of no effect.
        maximize: Whether to climb.
        capturable: Of no effect.
        differentiable: Must be False.
        fused: Of no effect.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        accum_type: Type of gradient accumulators, float32 or float16.
        first_order_momentum_accum_type: Type of first moments.
        second_order_momentum_accum_type: Type of second moments.
        max_grad_norm: Norm of all gradients together to which they are clipped; infinity not to clip.

    Raises:
        AssertionError: A type is neither float32 nor float16.
    """

    def __init__(
        self, params: Any, lr: float | None = None, betas: tuple[float, float] | None = None, eps: float | None = None,
        weight_decay: float | None = None, amsgrad: bool | None = None, foreach: bool | None = None,
        maximize: bool | None = None, capturable: bool | None = None, differentiable: bool | None = None,
        fused: bool | None = None, loss_scaling: float | None = None, accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None, max_grad_norm: float | None = None,
    ) -> None:
        given = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "foreach": foreach,
            "maximize": maximize, "capturable": capturable, "differentiable": differentiable, "fused": fused,
        }
        super().__init__(params, **present(given))
        types = moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type)
        self._begin(given, ADAM_ATTRIBUTES, loss_scaling, accum_type, **types)
        self.max_grad_norm = checked_norm(max_grad_norm)


class AdamW(Optimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` with PopTorch's arguments.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, as the arguments after it those of torch.
        betas: Decays of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Taken from the weights apart from the gradient.
        amsgrad: Must be False in a training model.
        maximize: Whether to climb.
        foreach: Of no effect.
        capturable: Of no effect.
        differentiable: Must be False.
        fused: Of no effect.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        bias_correction: Of no effect, as in PopTorch 3.3: moments are always corrected.
        accum_type: Type of gradient accumulators, float32 or float16.
        first_order_momentum_accum_type: Type of first moments.
        second_order_momentum_accum_type: Type of second moments.
        max_grad_norm: Norm of all gradients together to which they are clipped; infinity not to clip.

    Raises:
        AssertionError: A type is neither float32 nor float16.
    """

    def __init__(
        self, params: Any, lr: float | None = None, betas: tuple[float, float] | None = None, eps: float | None = None,
        weight_decay: float | None = None, amsgrad: bool | None = None, maximize: bool | None = None,
        foreach: bool | None = None, capturable: bool | None = None, differentiable: bool | None = None,
        fused: bool | None = None, loss_scaling: float | None = None, bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None, first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None, max_grad_norm: float | None = None,
    ) -> None:
        given = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, **present(given))
        types = moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type)
        self._begin(given, ADAM_ATTRIBUTES, loss_scaling, accum_type, **types)
        self.bias_correction = bias_correction is not False
        self.max_grad_norm = checked_norm(max_grad_norm)
