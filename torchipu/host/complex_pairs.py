"""Complex numbers and the pairs of floats, ``[..., 2]``, that their memory holds: element types and strides."""

from __future__ import annotations

import torch

COMPLEX = {torch.float32: torch.complex64, torch.float16: torch.complex32}
"""The element type of complex numbers whose memory holds pairs of a type."""


def strides_of_pairs(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of the pairs, ``[..., 2]``, that complex numbers with these strides are."""
    return (*(2 * stride for stride in strides), 1)


def strides_of_complex(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of complex numbers whose parts, ``[..., 2]``, have these strides."""
    return tuple(stride // 2 for stride in strides[:-1])
