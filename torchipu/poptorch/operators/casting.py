"""`internal_cast`: the cast that PopTorch's own modules use."""

from __future__ import annotations

import torch


def internal_cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor as float or half.

    Args:
        tensor: Any tensor.
        dtype: ``torch.float`` or ``torch.half``.

    Raises:
        ValueError: It is another type.
    """
    if dtype not in (torch.float32, torch.float16):
        raise ValueError(f"Invalid cast type: {dtype}. Expected torch.float or torch.half.")
    return tensor.to(dtype)
