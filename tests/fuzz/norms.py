"""Normalisations written out, so that what they round within is disturbed where a judge asks how far roundings move.

A norm takes from a gradient what its mean and its direction are. Over two elements that is nearly all of it, and what
is left is a difference of roundings made within the norm: disturbances of its operand and of its result cancel in it
as the gradient does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

Disturb = Callable[[torch.Tensor], torch.Tensor]


class DisturbedFunctional:
    """`torch.nn.functional` with norms of a batch, of groups, of layers and of instances that are disturbed within.

    Args:
        disturb: What changes a tensor as its rounding might.
    """

    def __init__(self, disturb: Disturb) -> None:
        self._disturb = disturb

    def __getattr__(self, name: str) -> Any:
        """Return what is not written out."""
        return getattr(F, name)

    def batch_norm(
        self, x: torch.Tensor, mean: torch.Tensor | None, variance: torch.Tensor | None,
        weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, training: bool = False,
        momentum: float = 0.1, eps: float = 1e-5,
    ) -> torch.Tensor:
        """Normalise ``[N, C, ...]`` by channel; running statistics are torch's own."""
        if not training:
            return F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
        with torch.no_grad():
            F.batch_norm(x.detach(), mean, variance, None, None, training, momentum, eps)
        normalised = self._normalised(x, [0, *range(2, x.dim())], eps)
        return _by_channel(normalised, weight, bias)

    def group_norm(
        self, x: torch.Tensor, groups: int, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        """Normalise ``[N, C, ...]`` by sample and group of channels."""
        if not x.numel():
            return F.group_norm(x, groups, weight, bias, eps)
        normalised = self._normalised(x.reshape(x.shape[0], groups, -1), [2], eps).reshape(x.shape)
        return _by_channel(normalised, weight, bias)

    def instance_norm(self, x: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        """Normalise ``[N, C, ...]`` by sample and channel; with statistics or weights it is torch's own."""
        if others or named or not x.numel() or math.prod(x.shape[2:]) < 2:
            return F.instance_norm(x, *others, **named)
        return self._normalised(x, [*range(2, x.dim())], 1e-5)

    def layer_norm(
        self, x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None, eps: float = 1e-5,
    ) -> torch.Tensor:
        """Normalise the last dimensions, which have this shape."""
        if not x.numel() or tuple(x.shape[-len(shape):]) != tuple(shape):
            return F.layer_norm(x, shape, weight, bias, eps)
        normalised = self._normalised(x, [*range(-len(shape), 0)], eps)
        scaled = normalised if weight is None else normalised * weight
        return scaled if bias is None else scaled + bias

    def _normalised(self, x: torch.Tensor, dims: list[int], eps: float) -> torch.Tensor:
        # Apart, since a gradient less its mean rounds as the two do, and not as what is left.
        mean = x.mean(dims, keepdim=True).expand_as(x)
        centred = self._disturb(self._disturb(x) - self._disturb(mean))
        return centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt()


def _by_channel(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    shape = (-1, *[1] * (x.dim() - 2))
    scaled = x if weight is None else x * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)
