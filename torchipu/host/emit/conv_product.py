"""Host steps of convolutions and their gradients as matrix products over panels of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchipu._kernels.table import conv as convolutions
from torchipu._kernels.table import conv_product as kernels
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.matmul import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for, packed_rows
from torchipu.optable.blocks import Along, Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

LANES = 32  # TI_LANES: pixels of a panel
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
BY_ROW, GATHERED, PACKED, READY = 0, 1, 2, 3
SOURCE_BYTES = 84  # sizeof(ti_source)
HAS_BIAS, HAS_NORM, HAS_NORM_WEIGHT, HAS_NORM_BIAS, HAS_ADDEND, IS_RELU, HAS_GATE = 1, 2, 4, 8, 16, 32, 64


@dataclass(frozen=True, slots=True)
class Product:
    """Results of one product: a grid of lanes over planes of pixels, and the taps that each lane meets.

    Attributes:
        grid: Images, groups, channels and results of a group, height and width of a source plane, rows and columns
            of lanes, steps of a lane in the source plane.
        target: Elements of a plane of results, where lane (0, 0) goes, steps from lane to lane down and across.
        weights: Strides along groups, results and channels.
        taps: Row, column and place in the weights of each.
    """

    grid: tuple[int, int, int, int, int, int, int, int, int, int]
    target: tuple[int, int, int, int]
    weights: tuple[int, int, int]
    taps: tuple[tuple[int, int, int], ...]

    @property
    def order(self) -> int:
        """How the weights are read: whether a result's summands adjoin, or results do, or neither."""
        places = tuple(place for _, _, place in self.taps)
        if self.weights[2] == len(places) and places == tuple(range(len(places))):
            return BY_ROW
        return PACKED if self.weights[1] == 1 else GATHERED

    def blocks(self, lanes: int, rows: int) -> Blocks:
        """What of the results items of so many lanes and results write."""
        groups, results, down, across = self.grid[1], self.grid[3], self.grid[6], self.grid[7]
        plane, first, row_step, step = self.target
        image = groups * results * plane
        along = Along(self.lanes, lanes, across, step, down, row_step, image)
        if step == 1 and row_step == across:  # rows adjoin
            along = Along(self.lanes, lanes, down * across, 1, 1, image, image)
        group = Along(groups, 1, groups, results * plane)
        return Blocks((group, along, Along(results, rows, results, plane)), first)

    @property
    def lanes(self) -> int:
        """Pixels of all images."""
        return self.grid[0] * self.grid[6] * self.grid[7]


def forward_product(s: Shape) -> Product:
    """Return the convolution itself: every output meets the whole window."""
    taps = tuple(
        (kh * s.dh - s.ph, kw * s.dw - s.pw, kh * s.kw + kw) for kh in range(s.kh) for kw in range(s.kw)
    )
    grid = (s.n, s.g, s.ic, s.oc, s.h, s.w, s.oh, s.ow, s.sh, s.sw)
    return Product(grid, (s.oh * s.ow, 0, s.ow, 1), (s.oc * s.summands, s.summands, s.kh * s.kw), taps)


def input_products(s: Shape) -> list[Product]:
    """Return the gradient of the input: a product for each phase of the strides, over the taps that reach it."""
    products = []
    for row in range(min(s.sh, s.h)):
        for column in range(min(s.sw, s.w)):
            taps = tuple(
                ((row + s.ph - kh * s.dh) // s.sh, (column + s.pw - kw * s.dw) // s.sw, kh * s.kw + kw)
                for kh in range(s.kh) if (row + s.ph - kh * s.dh) % s.sh == 0
                for kw in range(s.kw) if (column + s.pw - kw * s.dw) % s.sw == 0
            )
            grid = (s.n, s.g, s.oc, s.ic, s.oh, s.ow, -(-(s.h - row) // s.sh), -(-(s.w - column) // s.sw), 1, 1)
            target = (s.h * s.w, row * s.w + column, s.sh * s.w, s.sw)
            products.append(Product(grid, target, (s.oc * s.summands, s.kh * s.kw, s.summands), taps))
    return products


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
        weight: Weights, as they lie in memory.
        bias: Added to each plane of results.
        norm: Running mean and variance, then weight and bias where ``flags`` has them.
        addend: Added to the results, after the normalisation.
        gate: Where it is not above 0, results are 0.
        flags: HAS_NORM, HAS_NORM_WEIGHT, HAS_NORM_BIAS, IS_RELU.
        epsilon: Of the normalisation.
    """
    groups, channels, results = product.grid[1:4]
    taps = max(1, len(product.taps))
    panels, rows = _cut(product.lanes, groups, results)
    panels = min(panels, max(1, MOST_SOURCES // taps))
    block = min(channels, max(1, _depth(product, panels) // taps))
    segment = min(block * taps, max(BLOCK, taps))
    items = groups * -(-product.lanes // (panels * LANES)) * -(-results // rows)
    flags |= (HAS_BIAS if bias is not None else 0) | (HAS_ADDEND if addend is not None else 0)
    flags |= HAS_GATE if gate is not None else 0
    order = product.order
    if order == BY_ROW and plan.is_hoisting:  # weights alone: packed ahead of the loop over micro-batches, or once
        inner = channels * taps
        weight, order = packed_rows(plan, weight, (results * inner, inner, 1), groups, results, inner, rows), READY
    operands = [x, weight, *(t for t in (bias, *norm, addend, gate) if t is not None)]
    floats = panels * LANES * (block * taps + rows) + 2 * _rounded_up(rows, 16) + _rounded_up(block * taps, 16)
    floats += rows * block * taps if product.order == PACKED else 0
    plan.step(
        kernels.CONV_PRODUCT, [out], operands,
        ints=(
            *product.grid, *product.target, *product.weights, len(product.taps), panels, rows, block,
            segment, flags, order,
            *(number for tap in product.taps for number in tap),
        ),
        scalars=(epsilon,), items=items,
        grain=grain_for(items, groups * product.lanes * results * channels * taps, LEAST_CHUNK_MACS),
        scratch_bytes=4 * floats + SOURCE_BYTES * panels * (taps + 1) * 4,
        writes=[product.blocks(panels * LANES, rows)],
    )


def _depth(product: Product, panels: int) -> int:
    """Summands that are laid out at a time: long runs of the rows of weights where these come from memory."""
    channels, results = product.grid[2:4]
    if product.order != BY_ROW or results * channels * len(product.taps) < MANY_WEIGHTS:
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
    return s.oc >= LEAST_RESULTS and _is_indexable(s)


def serves_input(s: Shape) -> bool:
    """Whether the gradient of the input goes this way: with long strides its phases have few pixels and taps."""
    return s.ic >= LEAST_RESULTS and s.sh * s.sw <= 4 and _is_indexable(s)


def serves_weight(s: Shape) -> bool:
    """Whether the gradient of the weights goes this way."""
    return s.oc >= LEAST_RESULTS and _is_indexable(s)


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
    product = forward_product(s)
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
        kernels.CONV_PRODUCT_WEIGHT, [partial], [dy, x],
        ints=(*product.grid, taps, length, panels, rows, chunks, *(n for tap in product.taps for n in tap)),
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
        convolutions.CONV_REDUCE, [total], [partial], ints=(chunks, count, 1024), items=blocks,
        grain=grain_for(blocks, count * chunks, 32768), writes=[Blocks.of((count,), (1024,))],
    )
