"""Host steps of convolutions whose groups have a single channel, and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from torchipu._kernels.table.conv_product import ConvProductScalars, Grid, GridTap
from torchipu._kernels.table.depthwise import (
    DEPTHWISE,
    DEPTHWISE_WEIGHT,
    MOST_SHARED,
    TILE_LANES,
    TILE_ROWS,
    Bands,
    DepthwiseInts,
    DepthwiseWeightInts,
)
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.pixel_product import Product
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

MOST_RESULTS = 4  # of a group: more of them share what they read better in a matrix product
BAND_FLOATS = 10 * 1024  # of a plane at a time: these stay in a first-level cache of 48 KiB
WIDE_LANES = 4 * TILE_LANES  # rows of small images are put side by side until they are so long


def serves(grid: Grid) -> bool:
    """Whether a product goes this way."""
    return grid.c == 1 and grid.m <= MOST_RESULTS and grid.g > 1


def emit(
    plan: HostPlanner, product: Product, out: HostTensor, operands: Sequence[HostTensor], flags: int, epsilon: float,
) -> None:
    """Emit a product of single channels.

    Args:
        plan: The planner.
        product: What meets what.
        out: Results.
        operands: Pixels and weights, then what `ConvEnding` tells of.
        flags: Those of ``ConvEnding``.
        epsilon: Of the normalisation.
    """
    grid = product.grid
    shared, taps = _columns_of(product)
    top, left = _corner(taps)
    bands = _bands(grid, taps, grid.n)
    items = grid.g * -(-grid.n // bands.images)
    row = grid.sw * bands.pitch
    plan.step(
        DEPTHWISE, [out], operands,
        ints=DepthwiseInts(
            grid=grid, target=product.target, bands=bands, weight_group=product.weights[0],
            weight_row=product.weights[1], top=top, left=left, columns=len(taps) // shared, shared=shared, flags=flags,
            num_taps=len(taps), taps=taps,
        ),
        scalars=ConvProductScalars(epsilon), items=items,
        grain=grain_for(items, grid.g * grid.m * product.lanes * max(1, len(taps)), LEAST_CHUNK_MACS),
        scratch_bytes=4 * (bands.source_rows * row + TILE_ROWS * bands.pitch + 2 * len(taps)),
        writes=[product.blocks(bands.images * grid.gh * grid.gw, grid.m)],
    )


def emit_weight(
    plan: HostPlanner, product: Product, partial: HostTensor, dy: HostTensor, x: HostTensor, chunks: int,
) -> None:
    """Emit the gradient of the weights, ``[chunks, groups, results, taps]``.

    Args:
        plan: The planner.
        product: The convolution.
        partial: A sum for each chunk of the images.
        dy: Gradient of the results.
        x: Input of the convolution.
        chunks: Of the images.
    """
    grid, taps = product.grid, product.taps
    top, left = _corner(taps)
    bands = _bands(grid, taps, 1)
    items = chunks * grid.g
    plan.step(
        DEPTHWISE_WEIGHT, [partial], [dy, x],
        ints=DepthwiseWeightInts(grid, bands, top, left, chunks, len(taps), taps), items=items,
        grain=grain_for(items, grid.g * grid.m * product.lanes * len(taps), LEAST_CHUNK_MACS),
        scratch_bytes=4 * bands.source_rows * grid.sw * bands.pitch + (8 * grid.m + 4) * len(taps),
        writes=[Blocks.of((grid.g, grid.m * len(taps)), (1, grid.m * len(taps))) if chunks == 1 else None],
    )


def chunks_of(grid: Grid) -> int:
    """Return in how many chunks the images are summed, so that threads have enough to share."""
    return max(1, min(grid.n, -(-LEAST_ITEMS // grid.g)))


def _columns_of(product: Product) -> tuple[int, tuple[GridTap, ...]]:
    """Return how many taps below each other share what they load, and all taps, column by column.

    Columns of more taps than can share are cut into equal parts, so that the order of sums stays the same.
    """
    taps = sorted(product.taps, key=lambda tap: (tap.column, tap.row))
    columns: dict[int, list[int]] = {}
    for tap in taps:
        columns.setdefault(tap.column, []).append(tap.row)
    heights = {len(rows) for rows in columns.values()}
    adjoin = all(rows == list(range(rows[0], rows[0] + len(rows))) for rows in columns.values())
    if product.grid.sh != 1 or not adjoin or len(heights) != 1:
        return 1, tuple(taps)
    height = heights.pop()
    return max(count for count in range(1, MOST_SHARED + 1) if height % count == 0), tuple(taps)


def _corner(taps: Sequence[GridTap]) -> tuple[int, int]:
    return min((tap.row for tap in taps), default=0), min((tap.column for tap in taps), default=0)


def _bands(grid: Grid, taps: Sequence[GridTap], images: int) -> Bands:
    """Return how planes are laid out, of up to so many images side by side."""
    top, left = _corner(taps)
    height = max((tap.row for tap in taps), default=0) - top
    reach = -(-(max((tap.column for tap in taps), default=0) - left) // grid.sw)
    span = grid.gw + reach
    images = max(1, min(images, WIDE_LANES // span))
    lanes = (images - 1) * span + grid.gw
    pitch = _rounded_up(_rounded_up(lanes, TILE_LANES) + reach, TILE_LANES // 2)

    def source_rows(rows: int) -> int:
        return (_rounded_up(rows, TILE_ROWS) - 1) * grid.sh + height + 1

    rows = grid.gh
    while rows > TILE_ROWS and source_rows(rows) * grid.sw * pitch > BAND_FLOATS:
        rows = _rounded_up(-(-rows // 2), TILE_ROWS)
    return Bands(images, rows, span, pitch, source_rows(rows))


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
