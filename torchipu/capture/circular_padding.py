"""Circular padding is put together of its pieces, each of which is copied once.

torch fills a new tensor with the middle and then copies borders within it. Without writes in place each of these is a
copy of all; joined to one another, dimension by dimension, pieces are written where they stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(self: Tensor, pad: Sequence[int]) -> Tensor:
    """Return a tensor with its last dimensions continued round; negative widths cut off.

    Args:
        self: What is padded.
        pad: Elements before and behind, of the last dimension first.
    """
    for place in range(len(pad) // 2):
        self = _padded(self, self.dim() - 1 - place, *pad[2 * place : 2 * place + 2])
    return self


def _padded(values: Tensor, dim: int, before: int, behind: int) -> Tensor:
    if before < 0 or behind < 0:
        values = values.narrow(dim, max(0, -before), values.shape[dim] + min(0, before) + min(0, behind))
    size, pieces = values.shape[dim], [values]
    if before > 0:
        pieces.insert(0, values.narrow(dim, size - before, before))
    if behind > 0:
        pieces.append(values.narrow(dim, 0, behind))
    return torch.cat(pieces, dim) if len(pieces) > 1 else values


IMPLEMENTED = {torch.ops.aten._pad_circular.default: padded}
"""What tracing is given instead of torch's own."""
