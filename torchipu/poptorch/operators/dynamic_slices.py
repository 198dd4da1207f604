"""Slices whose place is known only when the program runs: `dynamic_slice` and `dynamic_update`.

Their length is fixed at capture. A window that passes the end goes on at the beginning, as on the device.
"""

from __future__ import annotations

from typing import Any

import torch

from torchipu.poptorch.held_types import held_as
from torchipu.poptorch.poptorch_core import createPoptorchError

Tensor = torch.Tensor


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int) -> Tensor:
    """Return a window of a tensor.

    Args:
        tensor: ``[..., N, ...]``.
        dim: The dimension of ``N``.
        start: First index, one integer.
        size: Length of the window; ``N`` is a multiple of it.
        step: Every which element of the window is returned.

    Returns:
        ``[..., ceil(size / step), ...]``.

    Raises:
        Error: An argument is of another type, or the window does not fit.
    """
    _check_types(dim, start, size)
    if isinstance(step, bool) or not isinstance(step, int):
        raise createPoptorchError("Step must be an integer.")
    check_size(size, tensor.shape[dim], step)
    return tensor.index_select(dim, window_of(tensor, dim, start, size, step))


def dynamic_update(input: Tensor, src: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """Return a copy of a tensor with another one written into a window.

    Args:
        input: ``[..., N, ...]``.
        src: ``[..., size, ...]``, of the same type.
        dim: The dimension of ``N``.
        start: First index, one integer.
        size: Length of the window.

    Returns:
        ``[..., N, ...]``.

    Raises:
        Error: An argument is of another type, or the two do not fit.
    """
    _check_types(dim, start, size)
    if input.dim() != src.dim():
        raise createPoptorchError(
            f"input and src tensors must have same dimensionality. ({input.dim()}) vs ({src.dim()})"
        )
    if held_as(input.dtype) != held_as(src.dtype):
        raise createPoptorchError(
            f"input and src tensor must have same dtype. ({held_as(input.dtype)} vs {held_as(src.dtype)})"
        )
    _check_length(size)
    expected = list(input.shape)
    expected[dim] = size
    if list(src.shape) != expected or size > input.shape[dim]:
        raise createPoptorchError(
            f"The src tensor must be {expected}, a slice of {list(input.shape)} of size {size} in dimension {dim}, but "
            f"it is {list(src.shape)}."
        )
    # Outside the IPU torch takes nothing but 64-bit indices, and elements of exactly one type.
    return input.index_copy(dim, window_of(input, dim, start, size, 1).long(), src.to(input.dtype))


def _check_types(dim: Any, start: Any, size: Any) -> None:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise createPoptorchError("Dimension must be an integer.")
    if not isinstance(start, Tensor):
        raise createPoptorchError("Start must be a tensor.")
    if start.numel() != 1 or start.is_floating_point() or start.is_complex() or start.dtype == torch.bool:
        raise createPoptorchError(
            f"Start must be a tensor of one integer, not {list(start.shape)} of {start.dtype}."
        )
    if isinstance(size, bool) or not isinstance(size, int):
        raise createPoptorchError("Size must be an integer.")


def _check_length(size: int) -> None:
    if size == 0:
        raise createPoptorchError("The start and end of a slice must be different.")
    if size < 0:
        raise createPoptorchError("Taking a slice of a tensor with the end less than the start is not supported.")


def check_size(size: int, length: int, step: int) -> None:
    """Refuse windows that do not divide a dimension.

    Args:
        size: Of the window.
        length: Of the dimension.
        step: Every which element is taken.

    Raises:
        Error: They do not fit.
    """
    if step < 1:
        raise createPoptorchError(f"Slicing step must be at least 1. It is {step}.")
    _check_length(size)
    if length % size:
        raise createPoptorchError(
            f"The size of the slice ({size}) must be a factor of the slicing dimension ({length})."
        )


def window_of(tensor: Tensor, dim: int, start: Tensor, size: int, step: int) -> Tensor:
    """Return the indices of a window, [size / step]."""
    offsets = torch.arange(0, size, step, dtype=torch.int32, device=tensor.device)
    return (start.reshape(()).to(torch.int32) + offsets) % tensor.shape[dim]
