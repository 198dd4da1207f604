"""Copies between views, and fills."""

from __future__ import annotations

import math
import struct

from torchipu._kernels.table.copy import COPY, FILL, MAX_COPY_DIMS, TRANSPOSE, CopyInts, FillInts
from torchipu.errors import VerifyError
from torchipu.ir.types import DType
from torchipu.optable.emission import emit_cast
from torchipu.optable.host_tensor import TO_NEAREST, HostTensor, Rounding, collapse
from torchipu.optable.planner import HostPlanner

COPY_SHARE = 16384  # elements of one thread's share
TRANSPOSE_PANEL = 16
MIN_TRANSPOSE = 4
PACKINGS = {
    DType.FLOAT: "<f", DType.LONG: "<q", DType.INT: "<i", DType.SHORT: "<h", DType.CHAR: "<b",
    DType.UNSIGNED_CHAR: "<B",
    DType.BOOL: "<?", DType.HALF: "<e",
}


def emit_copy(
    plan: HostPlanner, dst: HostTensor, src: HostTensor, rounding: Rounding = TO_NEAREST,
) -> None:
    """Emit a copy between two views of the same shape, whatever their strides; it converts the element type.

    Args:
        plan: Receives the step.
        dst: Written; its elements may not overlap.
        src: Read; strides may be 0 or negative.
        rounding: How floats become halves.

    Raises:
        VerifyError: The shapes differ; the kernel would read beyond the source.
    """
    if src.shape != dst.shape:
        raise VerifyError(f"a copy of {src.shape} to {dst.shape}")
    if src.dtype is not dst.dtype:
        emit_cast(plan, dst, src, rounding)
        return
    if dst.num_elements == 0:
        return
    along = dst.order  # written one behind the other, whatever the order of the dimensions
    dst, src = dst.permuted(along), src.permuted(along)
    shape, (dst_strides, src_strides) = collapse(dst.shape, dst.strides, src.strides)
    if len(shape) > MAX_COPY_DIMS:
        raise ValueError(f"a copy has {len(shape)} separate dimensions, at most {MAX_COPY_DIMS}")
    order = _transposed_order(shape, dst_strides, src_strides)
    dims = range(len(shape)) if order is None else order
    layout = tuple(each[dim] for each in (shape, dst_strides, src_strides) for dim in dims)
    ints = CopyInts(len(shape), dst.dtype.host_bytes, layout)
    if order is None:
        plan.step(COPY, [dst], [src], ints=ints, items=dst.num_elements, grain=COPY_SHARE)
        return
    rows, columns = shape[order[-2]], shape[order[-1]]
    panels = -(-rows // TRANSPOSE_PANEL)
    grain = max(1, COPY_SHARE // (TRANSPOSE_PANEL * columns))
    plan.step(TRANSPOSE, [dst], [src], ints=ints, items=dst.num_elements // (rows * columns) * panels, grain=grain)


def _transposed_order(shape: tuple[int, ...], dst: tuple[int, ...], src: tuple[int, ...]) -> list[int] | None:
    """Return an order of dimensions that ends in a 2-d transpose, or None when there is none."""
    last = len(shape) - 1
    if dst[last] != 1 or src[last] in (0, 1) or shape[last] < MIN_TRANSPOSE:
        return None
    for dim in range(last):
        if src[dim] in (1, -1) and shape[dim] >= MIN_TRANSPOSE:
            return [*(k for k in range(last) if k != dim), dim, last]
    return None


def emit_fill(plan: HostPlanner, dst: HostTensor, value: float) -> None:
    """Emit a fill of storage without gaps with one value, converted to its type as eager does."""
    if dst.num_elements:
        plan.step(
            FILL, [dst], [], ints=FillInts(dst.dtype.host_bytes, bit_pattern(value, dst.dtype)),
            items=dst.num_elements, grain=2 * COPY_SHARE,
        )


def bit_pattern(value: float, dtype: DType) -> int:
    """Return the bits of a value in memory as a non-negative integer of at most 63 bits, or a signed one of 64."""
    if dtype is DType.BOOL:
        return int(bool(value))
    if dtype.is_floating:
        number = float(value)
        try:
            raw = struct.pack(PACKINGS[dtype], number)
        except OverflowError:
            raw = struct.pack(PACKINGS[dtype], math.copysign(math.inf, number))
        return int.from_bytes(raw, "little")
    bits = 8 * dtype.host_bytes
    return (int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
