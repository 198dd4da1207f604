"""Adaptive pools to one element are means, without the strides that torch then gives the result by `as_strided`.

Of dimensions of size 1 these say nothing, but their gradient is written into memory by strides, and depends on sizes:
for images in the order of channels and for `adaptive_avg_pool1d`, each set of sizes was captured by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _pool(rank: int, otherwise: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what implements the pool over the last ``rank`` dimensions."""

    def pool(self: Tensor, output_size: Sequence[int]) -> Tensor:
        if len(output_size) != rank:  # what is behind this takes any number, and gives no pool
            raise RuntimeError(f"adaptive_avg_pool{rank}d: output_size must be {rank} numbers, not {list(output_size)}")
        if tuple(output_size) == (1,) * rank and self.dim() > rank:
            return self.mean(tuple(range(-rank, 0)), keepdim=True)
        return otherwise(self, output_size)

    return pool


IMPLEMENTED: dict[Any, Callable[..., Tensor]] = {
    aten.adaptive_avg_pool2d.default: _pool(2, aten._adaptive_avg_pool2d),
    aten.adaptive_avg_pool3d.default: _pool(3, aten._adaptive_avg_pool3d),
}
"""What implements each overload while AOT autograd traces."""
