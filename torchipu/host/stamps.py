"""Whether tensors have the values that they had at an earlier call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Stamp = tuple[tuple[int, int], ...]
"""Where tensors lie and how often each was written: two equal ones mean the same values."""


def stamp_of(values: Sequence[torch.Tensor]) -> Stamp | None:
    """Return the stamp of tensors; None where there are none, or torch does not count the writes into one."""
    if not values or any(value.is_inference() for value in values):
        return None
    return tuple([(value.data_ptr(), value._version) for value in values])
