"""Host steps of convolutions of one and two dimensions, and of their gradients."""

from __future__ import annotations

from functools import partial

from torchipu._kernels.table.conv import (
    CONV_FORWARD,
    CONV_INPUT,
    CONV_UNITS,
    CONV_WEIGHT,
    ConvForwardInts,
    ConvInputInts,
    ConvWeightInts,
)
from torchipu.host.emit import conv_product, pixel_product
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.items import grain_for
from torchipu.host.emit.matmul import emit_product
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner, more_items
from torchipu.optable.samples import Samples

CACHE_FLOATS = 96 * 1024  # what a block should need of the second-level cache
LEAST_CHUNK_MACS = 200_000
LEAST_ITEMS = 8


def _blocks(s: Shape, images: int) -> tuple[int, int]:
    """Rows and columns of outputs that are expanded at a time."""
    rows, cols = s.oh, s.ow
    while rows > 1 and (s.expanded(rows, cols) > CACHE_FLOATS or images * -(-s.oh // rows) < LEAST_ITEMS):
        rows = -(-rows // 2)
    while (
        rows == 1
        and cols > 128
        and not s.reads_in_place
        and (s.expanded(1, cols) > CACHE_FLOATS or images * s.oh * -(-s.ow // cols) < LEAST_ITEMS)
    ):
        cols = -(-cols // 2)
    return rows, cols


def _offset_floats(s: Shape) -> int:
    return -(-s.summands // 16) * 16


def _matrix(held: HostTensor, rows: int, columns: int) -> HostTensor:
    """Return row-major storage as a matrix."""
    return HostTensor(held.buffer, held.offset, (rows, columns), (columns, 1), held.dtype)


def _turned_matrix(held: HostTensor, rows: int, columns: int) -> HostTensor:
    """Return row-major storage as the transpose of a matrix."""
    return HostTensor(held.buffer, held.offset, (columns, rows), (1, columns), held.dtype)


def emit_forward(
    plan: HostPlanner,
    s: Shape,
    out: HostTensor,
    x: HostTensor,
    weight: HostTensor,
    bias: HostTensor | None,
) -> None:
    """Emit a convolution with row-major operands."""
    if s.is_of_whole_images:
        emit_product(plan, _matrix(out, s.n, s.oc), _matrix(x, s.n, s.summands),
                     _turned_matrix(weight, s.oc, s.summands), bias)
        return
    if conv_product.serves(s):
        conv_product.emit_convolution(plan, s, out, x, weight, bias=bias)
        return
    rows, cols = _blocks(s, s.n * s.g)
    items = s.n * s.g * -(-s.oh // rows) * -(-s.ow // cols)
    ints = ConvForwardInts(s.of_kernel(rows, cols, direct=s.reads_in_place), has_bias=bias is not None)
    grain = grain_for(items, s.macs, LEAST_CHUNK_MACS)
    strides = (4 * s.output_elements, 4 * s.input_elements, 0, *([0] if bias is not None else []))
    plan.step(
        CONV_FORWARD, [out], [x, turned(plan, s, weight)] + ([bias] if bias is not None else []), ints=ints,
        items=items, grain=grain, scratch_bytes=4 * (_offset_floats(s) + s.expanded(rows, cols)),
        joining=partial(more_items, strides, ints, items, grain),
        writes=[Blocks.of((s.n * s.g, s.oc, s.oh, s.ow), (1, s.oc, rows, cols))],
        samples=Samples.of(s.n, out, x, None, *([None] if bias is not None else [])),
    )


def turned(plan: HostPlanner, s: Shape, weight: HostTensor) -> HostTensor:
    """Return the weights as ``[group, summand, output channel]``: a tile reads neighbouring channels side by side."""
    packed = plan.scratch((s.g, s.summands, s.oc))
    rows = HostTensor(weight.buffer, weight.offset, packed.shape, (s.oc * s.summands, 1, s.summands), weight.dtype)
    emit_copy(plan, packed, rows)
    return packed


# --------------------------------------------------------------------------- host side: gradients
def emit_input_gradient(plan: HostPlanner, s: Shape, dx: HostTensor, dy: HostTensor, weight: HostTensor) -> None:
    """Emit the gradient of the input: products over its pixels, or columns of windows folded back."""
    if s.is_of_whole_images:
        emit_product(plan, _matrix(dx, s.n, s.summands), _matrix(dy, s.n, s.oc), _matrix(weight, s.oc, s.summands))
        return
    if conv_product.serves_input(s):
        for product in pixel_product.input_products(s):
            conv_product.emit_product(plan, product, dx, dy, weight)
        return
    channels = s.ic
    while (
        channels > 1
        and s.n * s.g * -(-s.ic // channels) < LEAST_ITEMS
        or channels * s.kh * s.kw > 1024
        and channels > 1
    ):
        channels = -(-channels // 2)
    rows = s.oh
    while rows > 1 and channels * s.kh * s.kw * rows * s.ow > CACHE_FLOATS:
        rows = -(-rows // 2)
    items = s.n * s.g * -(-s.ic // channels)
    plan.step(
        CONV_INPUT,
        [dx],
        [dy, weight],
        ints=ConvInputInts(s.of_kernel(rows, s.ow, direct=s.is_pointwise), channels),
        items=items,
        grain=grain_for(items, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * channels * s.kh * s.kw * (rows * s.ow + s.oc),
        writes=[Blocks.of((s.n * s.g, s.ic, s.h * s.w), (1, channels, s.h * s.w))],
    )


def emit_weight_gradient(plan: HostPlanner, s: Shape, dw: HostTensor, dy: HostTensor, x: HostTensor) -> None:
    """Emit the gradient of the weights."""
    if s.is_of_whole_images:
        emit_product(plan, _matrix(dw, s.oc, s.summands), _turned_matrix(dy, s.n, s.oc), _matrix(x, s.n, s.summands))
        return
    if conv_product.serves_weight(s):
        conv_product.emit_weight_product(plan, s, dw, dy, x)
        return
    rows, cols = _blocks(s, s.n)
    units = s.n * -(-s.oh // rows) * -(-s.ow // cols)
    count = s.g * s.oc * s.summands
    channels = s.oc
    while channels > 16 and units * s.g * -(-s.oc // channels) < LEAST_ITEMS:
        channels = -(-channels // 2)
    # As few partial sums as keep the threads busy: each is written once and read once.
    chunks = max(1, min(units, -(-LEAST_ITEMS // (s.g * -(-s.oc // channels)))))
    while channels > 64 and chunks > 1 and count > 65536:
        channels = -(-channels // 2)
        chunks = max(1, min(units, -(-LEAST_ITEMS // (s.g * -(-s.oc // channels)))))
    size = s.expanded(rows, cols)
    together = max(1, min(CONV_UNITS, CACHE_FLOATS // 2 // max(1, size))) if size else CONV_UNITS
    partial = dw if chunks == 1 else plan.scratch((chunks, count))
    items = chunks * s.g * -(-s.oc // channels)
    plan.step(
        CONV_WEIGHT,
        [partial],
        [dy, x],
        ints=ConvWeightInts(s.of_kernel(rows, cols, direct=s.reads_in_place), chunks, channels, together),
        items=items,
        grain=grain_for(items, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * (_offset_floats(s) + together * size),
        writes=[Blocks.of((s.g, s.oc, s.summands), (1, channels, s.summands)) if chunks == 1 else None],
    )
    if chunks > 1:
        conv_product.emit_reduce(plan, dw, partial, chunks, count)
