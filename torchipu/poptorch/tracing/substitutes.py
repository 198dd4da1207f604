"""Calls into torch that PopTorch computes otherwise than torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchipu.poptorch.poptorch_core import createPoptorchError

WITH_FACTORS = frozenset({"addmv", "addmm", "baddbmm", "addbmm", "addr", "sspaddmm"})
"""Functions that add a product of two tensors, alpha times."""
NO_MINLENGTH = (
    "Bincount `minlength` must be specified and must be a constant. On the IPU MK2 platform the minimum length is also "
    "the maximum length"
)


def substituted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what is called for a function: another one where PopTorch computes otherwise.

    Args:
        function: Of torch.
    """
    if function in (torch.bincount, torch.Tensor.bincount):
        return _bincount
    name = getattr(function, "__name__", "")
    if name.removesuffix("_") in WITH_FACTORS:
        return _without_factors(function)
    return _index_fill(function) if name in ("index_fill", "index_fill_") else function


def _bincount(input: torch.Tensor, weights: torch.Tensor | None = None, minlength: Any = 0) -> torch.Tensor:
    """Count values into exactly ``minlength`` places; values beyond them are left out.

    Raises:
        Error: The length is not given.
        DataDependentOutputException: It is not known at capture.
    """
    minlength = int(minlength)
    if minlength <= 0:
        raise createPoptorchError(NO_MINLENGTH)
    if input.dim() != 1 or input.is_floating_point() or input.is_complex():
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    values = input.to(torch.int64)
    is_within = values < minlength
    counted = is_within.to(dtype) if weights is None else torch.where(is_within, weights, 0).to(dtype)
    return counted.new_zeros(minlength).index_add(0, torch.where(is_within, values, 0), counted)


def _without_factors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a sum of a tensor and a product that reads no factor where it is taken zero times."""
    def call(*args: Any, **kwargs: Any) -> Any:
        alpha = kwargs.get("alpha", 1)
        if isinstance(alpha, torch.Tensor) or alpha != 0 or len(args) < 3:
            return function(*args, **kwargs)
        return function(args[0], *(factor.new_zeros(factor.shape) for factor in args[1:3]), *args[3:], **kwargs)

    return call


def _index_fill(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filling that masks with a tensor's value: torch's gradient of it asks which indices are distinct."""
    def call(input: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() or not input.dim() or not value.requires_grad:
            return function(input, dim, index, value)
        is_filled = torch.zeros(input.shape[dim], dtype=torch.bool, device=input.device).index_fill(0, index, True)
        mask = is_filled.reshape(-1, *(1,) * (input.dim() - 1 - dim % input.dim()))
        return (input.masked_fill if function.__name__ == "index_fill" else input.masked_fill_)(mask, value)

    return call
