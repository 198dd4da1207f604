"""Where values lie on the host, and how they are rounded to half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchipu._kernels.table.round_blocks import HalfOverflow
from torchipu.errors import VerifyError
from torchipu.ir.types import DType


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A strided view of a host buffer.

    Attributes:
        buffer: Number of the buffer in the plan.
        offset: Elements from the beginning of the buffer.
        shape: Sizes.
        strides: Elements between neighbours along each dimension; 0 where expanded.
        dtype: Element type in memory.
    """

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def num_elements(self) -> int:
        """Product of the sizes."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie row-major without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def is_dense(self) -> bool:
        """Whether elements lie without gaps in some order of the dimensions."""
        return self.permuted(self.order).is_contiguous

    @property
    def has_channels_last(self) -> bool:
        """Whether elements of ``[N, C, ...]`` lie as ``[N, ..., C]`` without gaps, and not row-major as well."""
        if len(self.shape) < 3:
            return False
        order = (0, *range(2, len(self.shape)), 1)
        return self.permuted(order).is_contiguous and not self.is_contiguous

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions from the largest stride to the least."""
        return order_of(self.shape, self.strides)

    def in_order_of(self, strides: Sequence[int]) -> HostTensor:
        """Return a view of the same elements whose dimensions go from the largest of the given strides to the least."""
        return self.permuted(order_of(self.shape, strides))

    def permuted(self, order: Sequence[int]) -> HostTensor:
        """Return a view of the same elements with its dimensions in another order."""
        shape, own = (tuple(numbers[dim] for dim in order) for numbers in (self.shape, self.strides))
        return HostTensor(self.buffer, self.offset, shape, own, self.dtype)


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a result becomes half.

    Attributes:
        random: LONG[4] of a random op (see ``HostPlanner.random_state``) to round stochastically; None to round to
            nearest.
        overflow: What becomes of values beyond 65504.
    """

    random: HostTensor | None = None
    overflow: HalfOverflow = HalfOverflow.INFINITY


TO_NEAREST = Rounding()
MIN_TRANSPOSE = 4
"""Rows and columns from which on a transpose is worth a kernel of its own."""


def order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions from the largest stride to the least; of equal ones, those of one element last."""
    return tuple(sorted(range(len(shape)), key=lambda dim: (-strides[dim], -shape[dim])))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Merge dimensions that lie one after another in every layout, and drop those of size 1.

    Args:
        shape: Sizes.
        strides: For each layout its strides, in elements.

    Returns:
        The merged sizes, at least one, and the strides of each layout.
    """
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        steps = [layout[dim] for layout in strides]
        if sizes and all(kept[-1] == step * size for kept, step in zip(merged, steps, strict=True)):
            sizes[-1] *= size
            for kept, step in zip(merged, steps, strict=True):
                kept[-1] = step
        else:
            sizes.append(size)
            for kept, step in zip(merged, steps, strict=True):
                kept.append(step)
    if not sizes:
        return (1,), tuple((0,) for _ in strides)
    return tuple(sizes), tuple(tuple(kept) for kept in merged)


def take_turns(one: HostTensor, other: HostTensor) -> bool:
    """Whether floats of two tensors of one shape take turns in memory, as real and imaginary parts do."""
    if one.buffer != other.buffer or not one.dtype is other.dtype is DType.FLOAT or one.shape != other.shape:
        return False
    if one.strides != other.strides or abs(one.offset - other.offset) != 1:
        return False
    _, (strides,) = collapse(one.shape, one.strides)
    return strides[-1] == 2


def broadcast(held: HostTensor, shape: Sequence[int]) -> HostTensor:
    """Return a view with stride 0 wherever the tensor is repeated to reach ``shape``.

    Raises:
        VerifyError: It does not broadcast to ``shape``; a kernel would read beyond it.
    """
    more, missing = max(0, len(held.shape) - len(shape)), max(0, len(shape) - len(held.shape))
    sizes, wanted = held.shape[more:], shape[missing:]
    if any(size != 1 for size in held.shape[:more]) or any(
        size not in (1, other) for size, other in zip(sizes, wanted, strict=True)
    ):
        raise VerifyError(f"{held.shape} does not broadcast to {tuple(shape)}")
    strides = [0] * missing + [
        0 if size == 1 else stride for size, stride in zip(sizes, held.strides[more:], strict=True)
    ]
    return HostTensor(held.buffer, held.offset, tuple(shape), tuple(strides), held.dtype)


def transposed_order(shape: Sequence[int], dst: Sequence[int], src: Sequence[int]) -> list[int] | None:
    """Return an order of dimensions in which a copy ends in a 2-d transpose, or None when there is none.

    Args:
        shape: Sizes of the copy, as `collapse` leaves them.
        dst: Strides in the target.
        src: Strides in the source.
    """
    last = len(shape) - 1
    if dst[last] != 1 or src[last] in (0, 1) or shape[last] < MIN_TRANSPOSE:
        return None
    for dim in range(last):
        if src[dim] in (1, -1) and shape[dim] >= MIN_TRANSPOSE:
            return [*(k for k in range(last) if k != dim), dim, last]
    return None


def is_transposed(dst: HostTensor, src: HostTensor) -> bool:
    """Return whether a copy between two views of the same shape, of any element types, is a transpose."""
    if dst.num_elements == 0:
        return False
    along = dst.order
    dst, src = dst.permuted(along), src.permuted(along)
    shape, (dst_strides, src_strides) = collapse(dst.shape, dst.strides, src.strides)
    return transposed_order(shape, dst_strides, src_strides) is not None
