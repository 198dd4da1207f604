"""What moves, numbers or draws elements and is taken apart at capture; see `torchipu.capture.decompositions`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchipu.errors import UnsupportedOpError

aten = torch.ops.aten

TORCH_OWN = (
    aten._unsafe_masked_index, aten._unsafe_masked_index_put_accumulate, aten.cauchy, aten.channel_shuffle,
    aten.linspace.Tensor_Scalar, aten.linspace.Tensor_Tensor, aten.linspace.Scalar_Tensor,
    aten.log_normal, aten.logspace,
    aten.pixel_shuffle, aten.pixel_unshuffle, aten.rot90, aten.tril_indices, aten.triu_indices,
)
"""Ops for which torch's own decomposition gives parts that we serve."""


def _index_put(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """Choose by a boolean mask where eager mode would list the positions that it sets."""
    given = [index for index in indices if index is not None]
    if len(given) != 1 or given[0].dtype not in (torch.bool, torch.uint8):
        return NotImplemented
    mask = given[0].bool()
    lead = next(position for position, index in enumerate(indices) if index is not None)
    behind = self.dim() - lead - mask.dim()
    spread = mask.reshape(mask.shape + (1,) * behind).expand(self.shape)
    row = 1 if lead else values.dim() - behind  # dimensions of the values that run along the positions
    if values.numel() == 1:
        chosen = values.reshape(()).expand(self.shape)
    elif lead == 0 and row <= 0 or (row == 1 and lead == 0 and values.shape[0] == 1):
        chosen = values.reshape(values.shape[max(0, row) :]).expand(self.shape)
    elif lead == 0 and not accumulate and tuple(values.shape[1:]) == tuple(self.shape[mask.dim() :]):
        return _laid_as(self, aten.masked_scatter(self, spread, values))
    else:
        return NotImplemented
    return _laid_as(self, torch.where(spread, self + chosen if accumulate else chosen, self))


def _affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """Place points of ``[N, C, (D,) H, W]`` by matrices, ``[N, 2, 3]`` or ``[N, 3, 4]``; halves add up as floats.

    Torch's own decomposition makes a number of its own for a dimension of one element, which its graphs do not hold.
    """
    kind = torch.float32 if theta.dtype in (torch.float16, torch.bfloat16) else theta.dtype
    dims = len(size) - 2
    columns = [column.to(kind).reshape(size[0], *[1] * dims, dims) for column in theta.unbind(-1)]
    points = columns[-1]
    for dim, column in zip(range(dims, 0, -1), columns, strict=False):  # the first column is that of the last dimension
        shape = [1] * (dims + 2)
        shape[dim] = size[dim + 1]
        points = points + _line(size[dim + 1], theta, align_corners).to(kind).reshape(shape) * column
    return points.expand(size[0], *size[2:], dims).to(theta.dtype)


def _line(count: int, like: Tensor, align_corners: bool) -> Tensor:
    """Return so many numbers from -1 to 1, these two among them or, as the middles of as many parts, not."""
    if count <= 1:
        return like.new_zeros((count,))
    line = torch.linspace(-1, 1, count, dtype=like.dtype, device=like.device)
    return line if align_corners else line * ((count - 1) / count)


def _laid_as(self: Tensor, found: Tensor) -> Tensor:
    """Return a result in the order of memory of what it is written into: views of that are made anew from it."""
    if found.stride() == self.stride() or self.is_contiguous():
        return found
    order = _by_stride(self)
    if not self.permute(order).is_contiguous():
        return found
    return found.permute(order).contiguous().permute([order.index(dim) for dim in range(self.dim())])


def _by_stride(self: Tensor) -> list[int]:
    """Return the dimensions from the largest stride to the smallest."""
    strides = self.stride()
    return sorted(range(self.dim()), key=lambda dim: (-strides[dim], dim))


def _as_strided(self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Any:
    """Bring the operand to the order in which it lies in memory, where elements can be named by strides."""
    offset = 0 if storage_offset is None else storage_offset - int(self.storage_offset())
    if self.is_contiguous():
        if offset == (storage_offset or 0):
            return NotImplemented
        return _strided_from(self, size, stride, offset)
    order = _by_stride(self)
    ordered = self.permute(order)
    if not ordered.is_contiguous():
        raise _beyond(size)
    return _strided_from(ordered, size, stride, offset)


def _as_strided_copy(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None,
) -> Any:
    return aten.as_strided(self, size, stride, storage_offset).clone(memory_format=torch.contiguous_format)


def _as_strided_scatter(
    self: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None,
) -> Any:
    """Count from the operand's first element; refuse one with gaps: what lies there has no place in a program."""
    order = _by_stride(self)
    offset = 0 if storage_offset is None else storage_offset - int(self.storage_offset())
    if offset < 0 or not self.permute(order).is_contiguous():
        raise _beyond(size, "aten.as_strided_scatter.default")
    if offset == (storage_offset or 0):
        return NotImplemented
    return aten.as_strided_scatter(self.clone(), src, size, stride, offset)


def _strided_from(self: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    if offset < 0:
        raise _beyond(size)
    return aten.as_strided(self.clone(memory_format=torch.contiguous_format), size, stride, offset)


def _beyond(size: Sequence[int], target: str = "aten.as_strided.default") -> UnsupportedOpError:
    return UnsupportedOpError(
        f"{target}: a view of size {list(size)} shows memory that its operand does not",
        remedy="take the view of the tensor that owns the memory, or use narrow, select and unfold",
    )


def _normal(mean: Tensor | float, std: Tensor | float, *, generator: torch.Generator | None = None) -> Tensor:
    """Move and stretch standard normal values."""
    like = mean if isinstance(mean, Tensor) else std
    assert isinstance(like, Tensor)
    shape = torch.broadcast_shapes(*(value.shape for value in (mean, std) if isinstance(value, Tensor)))
    return aten.randn(shape, dtype=like.dtype, device=like.device) * std + mean


def _geometric(self: Tensor, p: float, *, generator: torch.Generator | None = None) -> Tensor:
    """Count trials until the first success, from a uniform draw in float32 whatever the type of the counts.

    torch's own decomposition draws in the type of the counts: always 0 in an integer type, and of few digits in half.
    """
    torch._check(0 < p < 1, lambda: f"geometric_ expects p to be in (0, 1), but got p={p}")
    uniform = aten.rand(self.shape, dtype=torch.float32, device=self.device)
    trials = torch.floor(torch.log1p(-uniform) / math.log1p(-p)) + 1
    return trials.to(self.dtype)


def _eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    """Return ones on the diagonal of ``[n, m]``.

    torch's own decomposition numbers rows in a type of as few bits as will do, for which it may have no `arange`.
    """
    rows = torch.arange(n, dtype=torch.int64, device=device)
    columns = rows if m is None else torch.arange(m, dtype=torch.int64, device=device)
    return (rows.unsqueeze(-1) == columns).to(dtype or torch.get_default_dtype())


OURS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.affine_grid_generator.default: _affine_grid,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.as_strided.default: _as_strided,
    aten.as_strided_copy.default: _as_strided_copy,
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
    aten.geometric.default: _geometric,
    aten.normal.Tensor_Tensor: _normal,
    aten.normal.Tensor_float: lambda mean, std=1.0, *, generator=None: _normal(mean, std),
    aten.normal.float_Tensor: lambda mean, std, *, generator=None: _normal(mean, std),
}
"""Decompositions of our own."""
