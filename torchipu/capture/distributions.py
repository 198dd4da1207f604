"""Distributions while a model is captured: there are no values to validate, or to draw again where out of bounds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributions import Distribution
from torch.nn import init

from torchipu.capture.process_wide import replaced, switched

FILLS = "_no_grad_trunc_normal_"
"""The function of torch that draws such numbers."""


@contextlib.contextmanager
def unvalidated() -> Iterator[None]:
    """Validate no arguments of distributions meanwhile, and afterwards as before; Dynamo would leave them so."""
    with switched(Distribution, "_validate_args", False):
        yield


@contextlib.contextmanager
def truncated_at_once() -> Iterator[None]:
    """Let `torch.nn.init.trunc_normal_` draw each value once; torch may draw again what lies outside of the bounds."""
    with replaced(init, FILLS, _truncated_normal_) if hasattr(init, FILLS) else contextlib.nullcontext():
        yield


def _truncated_normal_(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None,
) -> torch.Tensor:
    """Fill a tensor from a normal distribution between ``a`` and ``b``, by the inverse of its distribution function."""
    if std == 0:
        return tensor.fill_(min(max(mean, a), b))
    low, high = (a - mean) / std, (b - mean) / std
    side = -1 if low + high > 0 else 1  # of the tail in which probabilities are small numbers, not close to 1
    shares = [math.erfc(-bound / math.sqrt(2)) / 2 for bound in sorted((side * low, side * high))]
    with torch.no_grad():
        drawn = torch.empty_like(tensor, dtype=torch.float32).uniform_(*shares, generator=generator)
        return tensor.copy_(torch.special.ndtri(drawn).mul(side * std).add(mean).clamp(a, b))


DRAWN_AT_ONCE: Mapping[Callable[..., Any], Callable[..., Any]] = (
    {getattr(init, FILLS): _truncated_normal_} if hasattr(init, FILLS) else {}
)
"""What Dynamo traces where torch may draw again."""
