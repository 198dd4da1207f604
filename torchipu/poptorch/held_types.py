"""Types of elements that the device has for those that it lacks."""

from __future__ import annotations

import torch

_HELD = {torch.int64: torch.int32, torch.float64: torch.float32, torch.bfloat16: torch.float32}


def held_as(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which the device holds elements of a type; results come back in it."""
    return _HELD.get(dtype, dtype)
