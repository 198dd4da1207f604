"""Interpolation stays one op each way while AOT autograd traces, which torch would take apart into gathers.

torch gives these operators implementations in Python, which come before any table of decompositions: an index for each
neighbour of a result, and for gradients additions at indices. The device has an op for them, as do we.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import get_scale_value, upsample_compute_output_size

from torchipu.ops.resample import INTERPOLATIONS


def implementations() -> dict[Any, Callable[..., Tensor] | None]:
    """Return what implements each overload while AOT autograd traces; None for what torch has in C++."""
    packets = [getattr(torch.ops.aten, name) for name in INTERPOLATIONS]
    by: dict[Any, Callable[..., Tensor] | None] = {packet.vec: _by_default(packet) for packet in packets}
    return by | dict.fromkeys(packet.default for packet in packets)


def shapes_of_gradients() -> dict[Any, Callable[..., Tensor]]:
    """Return what tells the shape of each gradient: torch's own in C++ knows no symbolic sizes."""
    return {getattr(torch.ops.aten, f"{name}_backward").default: _like_input for name in INTERPOLATIONS}


def shapes_of_nothing() -> dict[Any, Callable[..., Tensor]]:
    """Return what tells the shape of the nearest elements: torch's own fails where there are no elements at all."""
    overloads = [getattr(torch.ops.aten, name).default for name in INTERPOLATIONS if "nearest" in name]
    kernels = {overload: overload.py_kernels.get(DispatchKey.Meta) for overload in overloads}
    return {overload: _of_no_samples(kernel) for overload, kernel in kernels.items() if kernel is not None}


def _of_no_samples(shape_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what tells a shape for no samples too, and refuses samples of no elements as eager PyTorch does."""

    def shape(input: Tensor, size: Sequence[int], *factors: Any) -> Tensor:
        if input.numel() != 0:
            return shape_of(input, size, *factors)
        if 0 in input.shape[1:]:
            sizes = f"Non-empty {input.dim()}D data tensor expected but got a tensor with sizes {list(input.shape)}"
            raise RuntimeError(sizes)
        return shape_of(input.new_empty((1, *input.shape[1:])), size, *factors)[:0]

    return shape


def _like_input(gradient: Tensor, size: Sequence[int], input_size: Sequence[int], *_: Any) -> Tensor:
    """Return a tensor as large as the input, laid out as the gradient of the result."""
    made = gradient.new_empty(input_size)
    if gradient.dim() == 4 and gradient.is_contiguous(memory_format=torch.channels_last):
        return made.contiguous(memory_format=torch.channels_last)
    return made


def _by_default(packet: Any) -> Callable[..., Tensor]:
    """Return the form that takes a size or factors, by the one that takes a size.

    torch's own in C++ knows no symbolic sizes.
    """

    def interpolate(input: Tensor, size: Sequence[int] | None, *given: Any) -> Tensor:
        align, factors = given[:-1], given[-1]
        results = upsample_compute_output_size(input.size(), size, factors)
        return packet.default(input, results, *align, *(get_scale_value(factors, dim) for dim in range(len(results))))

    return interpolate
