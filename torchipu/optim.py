"""Optimisers for large batches that torch.optim lacks; they run on the host like any other, or in the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Parameters = Iterable[Tensor] | Iterable[dict[str, Any]]
MAX_WEIGHT_NORM = 65500.0
"""What LAMB takes a larger norm of weights for, by default: just within the range of a half, as in PopTorch."""


class _Layerwise(torch.optim.Optimizer):
    """Updates each tensor by itself."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient.

        Args:
            closure: Computes the loss anew, with gradients.

        Returns:
            What the closure returns.
        """
        loss = _evaluate(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Update a parameter in place, and its state."""
        raise NotImplementedError


class LAMB(_Layerwise):
    """Adam whose update of each tensor is scaled to the norm of its weights.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        betas: Decay of the averages of the gradient and of its square.
        eps: Added to the root of the second average.
        weight_decay: Share of the weights in the update.
        bias_correction: Whether the averages are corrected for their zeros at the beginning.
        max_weight_norm: What a larger norm of weights counts as; None for 65500.

    Raises:
        ValueError: A number is out of range.

    Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020.
    """

    def __init__(
        self, params: Parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, bias_correction: bool = True, max_weight_norm: float | None = None,
    ) -> None:
        _refuse_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"LAMB: betas must lie in [0, 1), got {betas}")
        norm = MAX_WEIGHT_NORM if max_weight_norm is None else max_weight_norm
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bias_correction": bias_correction,
            "max_weight_norm": norm,
        })

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        (beta1, beta2), step = group["betas"], state["step"].item()
        mean = state["exp_avg"].lerp_(grad, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        first, second = (1 - beta1**step, 1 - beta2**step) if group["bias_correction"] else (1.0, 1.0)
        direction = mean / first / (square.sqrt() / math.sqrt(second) + group["eps"])
        direction = direction + group["weight_decay"] * parameter
        weight, length = parameter.norm().clamp(max=group["max_weight_norm"]), direction.norm()
        ratio = torch.where((weight > 0) & (length > 0), weight / length, 1.0)
        parameter.sub_(group["lr"] * ratio * direction)


class LARS(_Layerwise):
    """SGD with momentum whose learning rate for each tensor follows the ratio of its weights to their gradient.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        momentum: Decay of the updates before.
        weight_decay: Share of the weights in the gradient.
        trust_coefficient: Ratio of an update to the weights at a learning rate of 1.
        eps: Added to the norms in the denominator.

    Raises:
        ValueError: A number is out of range.

    Source: You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017.
    """

    def __init__(
        self, params: Parameters, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3, eps: float = 1e-8,
    ) -> None:
        _refuse_negative(
            lr=lr, momentum=momentum, weight_decay=weight_decay, trust_coefficient=trust_coefficient, eps=eps
        )
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient,
            "eps": eps,
        })

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        weight, slope = parameter.norm(), grad.norm()
        ratio = group["trust_coefficient"] * weight / (slope + group["weight_decay"] * weight + group["eps"])
        ratio = torch.where((weight > 0) & (slope > 0), ratio, 1.0)
        change = group["lr"] * ratio * (grad + group["weight_decay"] * parameter)
        parameter.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(change))


def _evaluate(closure: Callable[[], float] | None) -> float | None:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _refuse_negative(**numbers: float) -> None:
    for name, value in numbers.items():
        if not value >= 0.0:
            raise ValueError(f"{name} must not be negative, got {value}")
