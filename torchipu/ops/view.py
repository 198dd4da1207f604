"""Views, copies and fills: what moves elements without computing on them."""

from __future__ import annotations

from torchipu._kernels.copy import COPY, TRANSPOSE
from torchipu.ops.elementwise import collapse, emit_cast
from torchipu.ops.spec import HostPlanner, HostTensor

COPY_SHARE = 16384  # elements of one thread's share
TRANSPOSE_PANEL = 16
MIN_TRANSPOSE = 4


def emit_copy(plan: HostPlanner, dst: HostTensor, src: HostTensor) -> None:
    """Emit a copy between two views of the same shape, whatever their strides; it converts the element type.

    Args:
        plan: Receives the step.
        dst: Written; its elements may not overlap.
        src: Read; strides may be 0 or negative.
    """
    if src.dtype is not dst.dtype:
        emit_cast(plan, dst, src)
        return
    if dst.num_elements == 0:
        return
    shape, (dst_strides, src_strides) = collapse(dst.shape, dst.strides, src.strides)
    order = _transposed_order(shape, dst_strides, src_strides)
    dims = range(len(shape)) if order is None else order
    ints = [len(shape), dst.dtype.host_bytes]
    for layout in (shape, dst_strides, src_strides):
        ints += [layout[dim] for dim in dims]
    if order is None:
        plan.step(COPY, [dst], [src], ints=ints, items=dst.num_elements, grain=COPY_SHARE)
        return
    rows, columns = shape[order[-2]], shape[order[-1]]
    outer = dst.num_elements // (rows * columns)
    panels = -(-rows // TRANSPOSE_PANEL)
    grain = max(1, COPY_SHARE // (TRANSPOSE_PANEL * columns))
    plan.step(TRANSPOSE, [dst], [src], ints=ints, items=outer * panels, grain=grain)


def _transposed_order(shape: tuple[int, ...], dst: tuple[int, ...], src: tuple[int, ...]) -> list[int] | None:
    """Return an order of dimensions that ends in a 2-d transpose, or None when there is none."""
    last = len(shape) - 1
    if dst[last] != 1 or src[last] in (0, 1) or shape[last] < MIN_TRANSPOSE:
        return None
    for dim in range(last):
        if src[dim] == 1 and shape[dim] >= MIN_TRANSPOSE:
            return [*(k for k in range(last) if k != dim), dim, last]
    return None
