"""Host steps of convolutions and their gradients as matrix products over panels of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchipu._kernels.table.conv import CONV_REDUCE, ConvReduceInts
from torchipu._kernels.table.conv_product import (
    CONV_PRODUCT,
    CONV_PRODUCT_WEIGHT,
    LANES,
    ConvEnding,
    ConvProductInts,
    ConvProductScalars,
    ConvProductWeightInts,
    Order,
)
from torchipu.host.emit import depthwise, phased
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.conv_weights import product_of
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.packing import packed_rows
from torchipu.host.emit.pixel_product import Product, forward_product
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

BLOCK = 128  # summands of a block: sums so short round no worse than those of eager PyTorch
RESULT_FLOATS = 64 * 1024  # results of an item: a quarter of a second-level cache of 1 MiB
COLUMN_FLOATS = 128 * 1024  # of the pixels laid out at a time, where weights are many
MANY_WEIGHTS = 256 * 1024  # more than stay in a second-level cache beside the rest
MOST_PANELS = 8
MOST_SOURCES = 2048  # taps of all panels of an item
LEAST_RESULTS = 32  # results of a group below which laying out pixels costs too much
LEAST_ROWS = 128  # results for which it pays to lay out pixels again
WEIGHT_LANES = 128  # pixels of a block of a gradient of weights
LEAST_IN_PLACE = 64  # pixels of an image whose gradients are read where they lie
SOURCE_BYTES = 84  # sizeof(ti_source)


def emit_convolution(
    plan: HostPlanner, s: Shape, out: HostTensor, x: HostTensor, weight: HostTensor, **ending: Any,
) -> None:
    """Emit a convolution with row-major operands.

    Args:
        plan: The planner.
        s: Its sizes.
        out: Results.
        x: Input.
        weight: Weights.
        ending: What becomes of the sums; see `emit_product`.
    """
    product, pixels = _read(plan, s, x)
    emit_product(plan, product, out, pixels, weight, **ending)


def _read(plan: HostPlanner, s: Shape, x: HostTensor) -> tuple[Product, HostTensor]:
    """Return the product that a convolution is, and the pixels that it reads: the input's, or these by phases."""
    product = forward_product(s)
    if depthwise.serves(product.grid) or not phased.serves(s):
        return product, x
    return phased.product(s), phased.emit(plan, s, x)


def emit_product(
    plan: HostPlanner, product: Product, out: HostTensor, x: HostTensor, weight: HostTensor, *,
    bias: HostTensor | None = None, norm: Sequence[HostTensor] = (), addend: HostTensor | None = None,
    gate: HostTensor | None = None, flags: int = 0, epsilon: float = 0.0,
) -> None:
    """Emit a product with row-major operands.

    Args:
        plan: The planner.
        product: What meets what.
        out: Results.
        x: Source pixels.
        weight: Weights, row-major or with their channels last.
        bias: Added to each plane of results.
        norm: Running mean and variance, then weight and bias where ``flags`` has them.
        addend: Added to the results, after the normalisation.
        gate: Where it is not above 0, results are 0.
        flags: Those of ``ConvEnding`` that the operands do not tell.
        epsilon: Of the normalisation.
    """
    product = product_of(product, weight)
    flags |= (ConvEnding.HAS_BIAS if bias is not None else 0) | (ConvEnding.HAS_ADDEND if addend is not None else 0)
    flags |= ConvEnding.HAS_GATE if gate is not None else 0
    ending = [t for t in (bias, *norm, addend, gate) if t is not None]
    if depthwise.serves(product.grid):
        depthwise.emit(plan, product, out, [x, weight, *ending], flags, epsilon)
        return
    groups, channels, results = product.grid.g, product.grid.c, product.grid.m
    taps = max(1, len(product.taps))
    panels, rows = _cut(product.lanes, groups, results)
    panels = min(panels, max(1, MOST_SOURCES // taps))
    block = min(channels, max(1, _depth(product, panels) // taps))
    if product.order == Order.BY_TAP:  # parts of equal size
        block = -(-channels // -(-channels // block))
    segment = min(block * taps, max(BLOCK, taps))
    items = groups * -(-product.lanes // (panels * LANES)) * -(-results // rows)
    order = product.order
    if order == Order.BY_ROW and plan.is_hoisting:  # weights alone: packed ahead of the loop, or once
        inner = channels * taps
        weight = packed_rows(plan, weight, (results * inner, inner, 1), groups, results, inner, rows)
        order = Order.READY
    operands = [x, weight, *ending]
    floats = panels * LANES * (block * taps + rows) + 2 * _rounded_up(rows, 16) + _rounded_up(block * taps, 16)
    floats += rows * block * taps if product.order == Order.PACKED else 0
    plan.step(
        CONV_PRODUCT, [out], operands,
        ints=ConvProductInts(
            grid=product.grid, target=product.target, weight_group=product.weights[0], weight_row=product.weights[1],
            weight_channel=product.weights[2], num_taps=len(product.taps), panels=panels, rows=rows, channels=block,
            segment=segment, flags=flags, order=order, taps=product.taps,
        ),
        scalars=ConvProductScalars(epsilon), items=items,
        grain=grain_for(items, groups * product.lanes * results * channels * taps, LEAST_CHUNK_MACS),
        scratch_bytes=4 * floats + SOURCE_BYTES * panels * (taps + 1) * 4,
        writes=[product.blocks(panels * LANES, rows)],
    )


def _depth(product: Product, panels: int) -> int:
    """Summands that are laid out at a time: long runs of rows of weights where these come from memory, or of a tap."""
    channels, results = product.grid.c, product.grid.m
    is_many = product.order == Order.BY_ROW and results * channels * len(product.taps) >= MANY_WEIGHTS
    if not is_many and product.order != Order.BY_TAP:
        return BLOCK
    return max(BLOCK, COLUMN_FLOATS // (LANES * panels))


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _cut(lanes: int, groups: int, results: int) -> tuple[int, int]:
    """Panels and results of an item: as many as caches hold, unless threads would have nothing to share.

    Results are divided first: that way each weight is read once, and laying out few pixels again costs little.
    """
    panels = max(1, min(MOST_PANELS, RESULT_FLOATS // (LANES * results), -(-lanes // LANES)))
    panels = -(-lanes // (LANES * -(-lanes // (LANES * panels))))  # items of equal size
    rows = results
    while rows >= 2 * LEAST_ROWS and groups * -(-lanes // (panels * LANES)) * -(-results // rows) < LEAST_ITEMS:
        rows = -(-rows // 2)
    panels = max(panels, min(MOST_PANELS, RESULT_FLOATS // (LANES * rows), -(-lanes // LANES)))
    while panels > 1 and groups * -(-lanes // (panels * LANES)) * -(-results // rows) < LEAST_ITEMS:
        panels = -(-panels // 2)
    return panels, rows


def serves(s: Shape) -> bool:
    """Whether the forward pass goes this way."""
    if s.is_of_whole_images and s.kh * s.kw > 1:
        return False
    return (s.oc >= LEAST_RESULTS or depthwise.serves(forward_product(s).grid)) and _is_indexable(s)


def serves_input(s: Shape) -> bool:
    """Whether the gradient of the input goes this way: with long strides its phases have few pixels and taps."""
    if s.is_of_whole_images and s.kh * s.kw > 1:
        return False
    is_depthwise = s.oc == 1 and depthwise.serves(forward_product(s).grid)
    return (s.ic >= LEAST_RESULTS or is_depthwise) and s.sh * s.sw <= 4 and _is_indexable(s)


def serves_weight(s: Shape) -> bool:
    """Whether the gradient of the weights goes this way."""
    return serves(s)


def _is_indexable(s: Shape) -> bool:
    """Whether places in the operands fit 32 bits."""
    return s.n * s.g * max(s.ic * s.h * s.w, s.oc * s.oh * s.ow) < 2**31 and s.g * s.oc * s.summands < 2**31


def emit_weight_product(plan: HostPlanner, s: Shape, dw: HostTensor, dy: HostTensor, x: HostTensor) -> None:
    """Emit the gradient of the weights.

    Args:
        plan: The planner.
        s: The convolution.
        dw: Gradient of the weights.
        dy: Gradient of the results.
        x: Input of the convolution.
    """
    product, x = _read(plan, s, x)
    if depthwise.serves(product.grid):
        chunks = depthwise.chunks_of(product.grid)
        partial = dw if chunks == 1 else plan.scratch((chunks, s.g * s.oc * s.summands))
        depthwise.emit_weight(plan, product, partial, dy, x, chunks)
        if chunks > 1:
            emit_reduce(plan, dw, partial, chunks, s.g * s.oc * s.summands)
        return
    taps, summands, pixels = len(product.taps), s.summands, s.oh * s.ow
    length = min(WEIGHT_LANES, _rounded_up(pixels if pixels >= LEAST_IN_PLACE else s.n * pixels, LANES))
    if pixels >= LEAST_IN_PLACE and length > pixels:
        length = max(LANES, pixels // LANES * LANES)
    blocks = s.n * -(-pixels // length) if length <= pixels else -(-s.n * pixels // length)
    rows = min(s.oc, 256)
    panels = min(4, -(-summands // LANES))
    while panels > 1 and s.g * -(-summands // (LANES * panels)) * -(-s.oc // rows) < LEAST_ITEMS:
        panels -= 1
    items = s.g * -(-summands // (LANES * panels)) * -(-s.oc // rows)
    chunks = max(1, min(blocks, -(-LEAST_ITEMS // items)))
    count = s.g * s.oc * summands
    partial = dw if chunks == 1 else plan.scratch((chunks, count))
    floats = length * LANES * panels + panels * LANES * rows + length * rows
    plan.step(
        CONV_PRODUCT_WEIGHT, [partial], [dy, x],
        ints=ConvProductWeightInts(
            grid=product.grid, num_taps=taps, lanes=length, panels=panels, rows=rows, chunks=chunks, taps=product.taps,
        ),
        items=items * chunks, grain=grain_for(items * chunks, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * floats + SOURCE_BYTES * length // LANES * (taps + 1) * 4,
        writes=[Blocks.of((s.g, s.oc, summands), (1, rows, panels * LANES)) if chunks == 1 else None],
    )
    if chunks > 1:
        emit_reduce(plan, dw, partial, chunks, count)


def emit_reduce(plan: HostPlanner, total: HostTensor, partial: HostTensor, chunks: int, count: int) -> None:
    """Emit the sum of ``chunks`` partial sums of ``count`` elements."""
    blocks = -(-count // 1024)
    plan.step(
        CONV_REDUCE, [total], [partial], ints=ConvReduceInts(chunks, count, 1024), items=blocks,
        grain=grain_for(blocks, count * chunks, 32768), writes=[Blocks.of((count,), (1024,))],
    )
