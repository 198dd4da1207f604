"""`LAMB`, which torch does not have."""

from __future__ import annotations

from typing import Any

import torch

from torchipu import optim as core
from torchipu.poptorch.optim.arguments import moment_types, present
from torchipu.poptorch.optim.optimizer import Optimizer


class LAMB(Optimizer, core.LAMB):
    """Adam scaled to the norm of the weights of each tensor; see `torchipu.optim.LAMB`.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, 1e-3 by default.
        betas: Decays of the two moments, (0.9, 0.999) by default.
        eps: Added to the root of the second moment, 1e-8 by default.
        weight_decay: Share of the weights in the update, 1e-2 by default.
        bias_correction: Whether moments are corrected, True by default.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        max_weight_norm: What a larger norm of weights counts as, 65500 by default.
        accum_type: Type of gradient accumulators, float32 or float16.
        first_order_momentum_accum_type: Type of first moments.
        second_order_momentum_accum_type: Type of second moments.

    Raises:
        AssertionError: A type is neither float32 nor float16.
    """

    def __init__(
        self, params: Any, lr: float | None = None, betas: tuple[float, float] | None = None, eps: float | None = None,
        weight_decay: float | None = None, bias_correction: bool | None = None, loss_scaling: float | None = None,
        max_weight_norm: float | None = None, accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        given = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_weight_norm": max_weight_norm,
        }
        super().__init__(params, **present({**given, "bias_correction": bias_correction}))
        self._begin(
            given, ("lr", "weight_decay", "betas", "eps", "max_weight_norm"), loss_scaling, accum_type,
            **moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )
        self.bias_correction = bias_correction is not False
        self.max_weight_norm = self.defaults["max_weight_norm"]
