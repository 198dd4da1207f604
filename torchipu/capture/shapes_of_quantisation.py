"""Shapes of what fake quantisation gives: torch has none for it, so Dynamo breaks the graph there for every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.library import Library

_LIBRARY = Library("aten", "IMPL")  # what it has registered goes with it


def _with_mask(self: Tensor, *parameters: Any) -> tuple[Tensor, Tensor]:
    """Return values and what the range did not cut off, both as ``self``."""
    return torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)


def _learnt(self: Tensor, *parameters: Any) -> Tensor:
    """Return values as ``self``."""
    return torch.empty_like(self)


def _of_learnt(grad: Tensor, self: Tensor, scale: Tensor, zero_point: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return the gradients of values, scale and zero point."""
    return torch.empty_like(self), torch.empty_like(scale), torch.empty_like(zero_point)


KERNELS: Mapping[str, Callable[..., Any]] = {
    "fake_quantize_per_tensor_affine_cachemask": _with_mask,
    "fake_quantize_per_channel_affine_cachemask": _with_mask,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _with_mask,
    "_fake_quantize_learnable_per_tensor_affine": _learnt,
    "_fake_quantize_learnable_per_channel_affine": _learnt,
    "_fake_quantize_learnable_per_tensor_affine_backward": _of_learnt,
    "_fake_quantize_learnable_per_channel_affine_backward": _of_learnt,
}
"""By operator of ATen what a tensor without values gives."""

_MASKED = (
    torch.ops.aten.fake_quantize_per_tensor_affine_cachemask_backward.default,
    torch.ops.aten.fake_quantize_per_channel_affine_cachemask_backward.default,
)
"""Gradients of values: torch's own code asks for the number of elements, which a graph of any size does not know."""


def _masked(grad: Tensor, mask: Tensor) -> Tensor:
    """Return the gradient of what the range did not cut off."""
    return grad * mask


def register() -> None:
    """Give torch the shapes, and gradients for any size, where it has none of its own."""
    key = DispatchKey.CompositeImplicitAutograd
    for overload in _MASKED:
        if key not in overload.py_kernels:
            overload.py_impl(key)(_masked)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name, kernel in KERNELS.items():
        if not any(has_kernel(f"aten::{name}", key) for key in ("Meta", "CompositeExplicitAutograd")):
            _LIBRARY.impl(name, kernel, "Meta")
