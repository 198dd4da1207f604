"""Copies between views, and fills."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from torchipu._kernels.table.convert import CONVERT, Conversion, ConvertInts
from torchipu._kernels.table.copy import (
    CONCATENATE_ROWS,
    COPY,
    FILL,
    LEAST_PANEL,
    MAX_COPY_DIMS,
    MAX_PIECES,
    PANEL_BYTES,
    TRANSPOSE,
    ConcatenateRowsInts,
    CopyInts,
    FillInts,
    PieceOfRow,
)
from torchipu.errors import VerifyError
from torchipu.ir.types import DType
from torchipu.optable.emission import emit_cast
from torchipu.optable.host_tensor import TO_NEAREST, HostTensor, Rounding, collapse, is_transposed, transposed_order
from torchipu.optable.planner import HostPlanner
from torchipu.optable.samples import Samples

COPY_SHARE = 16384  # elements of one thread's share
LONGEST_ROW_BYTES = 1 << 16  # put together of pieces; of longer ones each piece is copied by itself
CONVERT_SHARE = 4096  # floats that stay in a first-level cache for the step that reads them
PACKINGS = {
    DType.FLOAT: "<f", DType.LONG: "<q", DType.INT: "<i", DType.SHORT: "<h", DType.CHAR: "<b",
    DType.UNSIGNED_CHAR: "<B",
    DType.BOOL: "<?", DType.HALF: "<e",
}


CONVERSIONS = {
    (DType.HALF, DType.FLOAT): Conversion.FROM_HALF, (DType.BFLOAT, DType.FLOAT): Conversion.FROM_BFLOAT,
    (DType.FLOAT, DType.HALF): Conversion.TO_HALF, (DType.FLOAT, DType.BFLOAT): Conversion.TO_BFLOAT,
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
        _emit_converted(plan, dst, src, rounding)
        return
    if dst.num_elements == 0:
        return
    along = dst.order  # written one behind the other, whatever the order of the dimensions
    dst, src = dst.permuted(along), src.permuted(along)
    shape, (dst_strides, src_strides) = collapse(dst.shape, dst.strides, src.strides)
    if len(shape) > MAX_COPY_DIMS:
        raise ValueError(f"a copy has {len(shape)} separate dimensions, at most {MAX_COPY_DIMS}")
    order = transposed_order(shape, dst_strides, src_strides)
    item_bytes, num_items = dst.dtype.host_bytes, dst.num_elements
    wide = None if order is not None else _as_wider(item_bytes, shape, dst_strides, src_strides)
    if wide is not None:
        num_items //= shape[-1]
        (shape, dst_strides, src_strides), item_bytes = wide, item_bytes * shape[-1]
        order = transposed_order(shape, dst_strides, src_strides)
    dims = range(len(shape)) if order is None else order
    layout = tuple(each[dim] for each in (shape, dst_strides, src_strides) for dim in dims)
    ints = CopyInts(len(shape), item_bytes, layout)
    if order is None:
        plan.step(COPY, [dst], [src], ints=ints, items=dst.num_elements, grain=COPY_SHARE,
                  samples=Samples.of(dst.num_elements, dst, src))
        return
    rows, columns = shape[order[-2]], shape[order[-1]]
    panel = max(PANEL_BYTES // item_bytes, LEAST_PANEL)
    panels = -(-rows // panel)
    grain = max(1, COPY_SHARE // (panel * columns))
    plan.step(TRANSPOSE, [dst], [src], ints=ints, items=num_items // (rows * columns) * panels, grain=grain)


def _as_wider(
    item_bytes: int, shape: Sequence[int], dst: Sequence[int], src: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Return sizes and strides of a transpose of rows that are as wide as an element of another type, in such elements.

    Parts of a complex number are such rows. None where the copy is no such transpose.

    Args:
        item_bytes: Of an element.
        shape: Sizes of the copy, as `collapse` leaves them.
        dst: Strides in the target.
        src: Strides in the source.
    """
    row = shape[-1]
    numbers = (*shape, *dst, *src)
    if len(shape) < 3 or not all(type(number) is int for number in numbers) or dst[-1] != 1 or src[-1] != 1:
        return None
    if row * item_bytes not in (2, 4, 8) or any(stride % row for stride in (*dst[:-1], *src[:-1])):
        return None
    wide = (
        tuple(shape[:-1]), tuple(stride // row for stride in dst[:-1]), tuple(stride // row for stride in src[:-1]),
    )
    return wide if transposed_order(*wide) is not None else None


def emit_pieces(plan: HostPlanner, dst: HostTensor, pieces: Sequence[tuple[HostTensor, HostTensor]]) -> None:
    """Emit copies to several places of one result: in one step, row by row, where all are pieces of the same rows.

    Copied one after another, each piece would bring all lines of the result that it has a part of.

    Args:
        plan: Receives the steps.
        dst: The result.
        pieces: ``(place, source)`` of each; places are views of the result that do not overlap.
    """
    rows = [_rows_of(dst, place, held) for place, held in pieces]
    shapes = {None if row is None else row[:2] for row in rows}
    if not (2 <= len(pieces) <= MAX_PIECES and len(shapes) == 1 and None not in shapes):
        for place, held in pieces:
            emit_copy(plan, place, held)
        return
    placed = [row[2] for row in rows if row is not None]
    count, row_elements = next(shape for shape in shapes if shape is not None)
    size = dst.dtype.host_bytes
    ints = ConcatenateRowsInts(size, row_elements, len(placed), tuple(placed))
    sources = [held for _, held in pieces]
    samples = Samples(count, tuple(each * size for each in (row_elements, *(piece.apart for piece in placed))))
    plan.step(CONCATENATE_ROWS, [dst], sources, ints=ints, items=count, grain=max(1, COPY_SHARE // row_elements),
              samples=samples)


def _rows_of(dst: HostTensor, place: HostTensor, held: HostTensor) -> tuple[int, int, PieceOfRow] | None:
    """Return how many rows have some of a piece, how far they lie apart, and the piece; None where rows have none."""
    if held.dtype is not place.dtype or place.num_elements == 0 or not dst.is_dense:
        return None
    along = place.order
    place, held = place.permuted(along), held.permuted(along)
    shape, (to, source) = collapse(place.shape, place.strides, held.strides)
    if len(shape) == 1 and to[0] != 1:
        shape, to, source = (*shape, 1), (*to, 1), (*source, 1)
    if len(shape) != 2 or to[1] != 1 or source[1] != 1 or to[0] * place.dtype.host_bytes > LONGEST_ROW_BYTES:
        return None
    first = place.offset - dst.offset
    if source[0] < shape[1] or first + shape[1] > to[0] or shape[0] * to[0] != dst.num_elements:
        return None
    return shape[0], to[0], PieceOfRow(first, shape[1], source[0])


def _emit_converted(plan: HostPlanner, dst: HostTensor, src: HostTensor, rounding: Rounding) -> None:
    """Emit a cast; of what it transposes the narrower elements are brought into order first, or last."""
    if not is_transposed(dst, src):
        if rounding.random is None and not dst.is_contiguous:  # as it is in memory; random bits are drawn by place
            along = dst.order
            dst, src = dst.permuted(along), src.permuted(along)
        conversion = CONVERSIONS.get((src.dtype, dst.dtype))
        is_plain = dst.is_contiguous and src.is_contiguous and dst.num_elements > 0
        if conversion is not None and is_plain and (dst.dtype is not DType.HALF or rounding is TO_NEAREST):
            plan.step(CONVERT, [dst], [src], ints=ConvertInts(conversion), items=dst.num_elements, grain=CONVERT_SHARE,
                      samples=Samples.of(dst.num_elements, dst, src))
        else:
            emit_cast(plan, dst, src, rounding)
    elif src.dtype.host_bytes <= dst.dtype.host_bytes:
        along = dst.order
        turned = plan.scratch([dst.shape[dim] for dim in along], src.dtype)
        emit_copy(plan, turned, src.permuted(along))
        emit_cast(plan, dst.permuted(along), turned, rounding)
    elif rounding is TO_NEAREST:
        along = src.order
        converted = plan.scratch([src.shape[dim] for dim in along], dst.dtype)
        emit_cast(plan, converted, src.permuted(along))
        emit_copy(plan, dst.permuted(along), converted)
    else:  # random bits are drawn by place
        turned = plan.scratch(dst.shape, src.dtype)
        emit_copy(plan, turned, src)
        emit_cast(plan, dst, turned, rounding)


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
    if dtype is DType.BFLOAT:
        bits = bit_pattern(value, DType.FLOAT)
        return 0x7FC0 if math.isnan(value) else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    if dtype.is_floating:
        number = float(value)
        try:
            raw = struct.pack(PACKINGS[dtype], number)
        except OverflowError:
            raw = struct.pack(PACKINGS[dtype], math.copysign(math.inf, number))
        return int.from_bytes(raw, "little")
    bits = 8 * dtype.host_bytes
    return (int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
