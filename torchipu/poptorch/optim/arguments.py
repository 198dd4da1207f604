"""Arguments of constructors: which are given, and which values are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from torchipu.poptorch.poptorch_core import createPoptorchError


def moment_types(first: torch.dtype | None, second: torch.dtype | None) -> dict[str, torch.dtype | None]:
    """Return the types of first and second moments by the names of their arguments."""
    return {"first_order_momentum_accum_type": first, "second_order_momentum_accum_type": second}


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that were given; refuse text, which torch would compare with a number."""
    for name, value in values.items():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, (str, bytes)):
                raise TypeError(f"{name} must be a number, got {type(part).__name__} {part!r}")
    return {name: value for name, value in values.items() if value is not None}


def checked_type(name: str, dtype: torch.dtype | None) -> torch.dtype:
    """Return the type that an argument names, float32 if it was not given; refuse others than floats."""
    if dtype not in (None, torch.float16, torch.float32):
        raise AssertionError(f"{name} must be one of torch.float16, torch.float32")
    return torch.float32 if dtype is None else dtype


def checked_norm(norm: float | None) -> float:
    """Return the norm to clip to, infinity if it was not given."""
    if norm is not None and math.isnan(norm):
        raise createPoptorchError("max_grad_norm must not be NaN")
    return math.inf if norm is None else float(norm)
