"""Host steps of a convolution of one pixel and the depthwise one behind it, over channels in blocks."""

from __future__ import annotations

from torchipu._kernels.table.conv_blocked import BlockedWindow
from torchipu._kernels.table.pointwise_depthwise import POINTWISE_DEPTHWISE, PointwiseDepthwiseInts
from torchipu.host.emit import conv_blocked, depthwise_blocked
from torchipu.host.emit.conv_blocked import SUMMANDS, Ending
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

BLOCKS = (4, 3, 2)  # of channels of an item, the first that will do: as registers hold sums of beside each other
AGAIN = 1 / 12  # of the rows that lie between the two may be computed twice, where bands of results need both
HELD_FLOATS = 32 * 1024  # of what lies between the two: beside the image it stays in a second-level cache


def serves(inner: Shape, s: Shape) -> bool:
    """Whether the kernel takes a convolution and the depthwise one that reads what it makes, and it pays.

    It does not where bands of results would need many rows of what lies between the two again: there is so little of
    that then that it stays in the cache by itself.
    """
    is_pixel = (inner.kh, inner.kw, inner.sh, inner.sw, inner.ph, inner.pw, inner.g) == (1, 1, 1, 1, 0, 0, 1)
    slides = depthwise_blocked.serves(s) and depthwise_blocked.slides(s) and s.dh == 1
    return is_pixel and slides and conv_blocked.serves(inner) and _rows_again(s, _cut(s)[1]) <= AGAIN * s.h


def _cut(s: Shape) -> tuple[int, int]:
    """Return the blocks and the rows of an item."""
    all_blocks, blocks, rows = -(-s.g // vector_lanes()), 1, s.oh
    for most in BLOCKS:
        parts = -(-all_blocks // most)
        blocks = -(-all_blocks // parts)
        bands = min(s.oh, max(1, -(-LEAST_ITEMS // (s.n * parts))))
        rows = -(-s.oh // bands)
        if _rows_again(s, rows) <= AGAIN * s.h:
            break
    return blocks, rows


def _rows_again(s: Shape, rows: int) -> int:
    """Return how many rows of an image are computed for more than one band of so many rows of results."""
    return (-(-s.oh // rows) - 1) * max(0, s.kh - s.sh)


def emit(
    plan: HostPlanner, inner: Shape, s: Shape, out: HostTensor, x: HostTensor, weights: tuple[HostTensor, HostTensor],
    endings: tuple[Ending, Ending],
) -> None:
    """Emit both convolutions.

    Args:
        plan: The planner.
        inner: Sizes of the convolution of one pixel.
        s: Those of the depthwise one.
        out: Results in the blocked layout.
        x: Input, likewise.
        weights: Of each, row-major.
        endings: What becomes of the sums of each; the first has no addend.
    """
    lanes, columns = vector_lanes(), s.w + 2 * s.pw
    all_blocks, blocks_in = -(-s.g // lanes), -(-inner.ic // lanes)
    blocks, rows = _cut(s)

    def span(strip: int) -> int:
        return (strip - 1) * s.sh + s.kh

    strip = rows
    while strip > 1 and blocks * span(strip) * columns * lanes > HELD_FLOATS:
        strip -= 1
    chunk = max(1, min(blocks_in, SUMMANDS // lanes))
    chunk = -(-blocks_in // -(-blocks_in // chunk))
    items = s.n * -(-s.oh // rows) * -(-all_blocks // blocks)
    window = BlockedWindow(s.n, s.g, 1, 1, s.h, s.w, s.oh, s.ow, s.kh, s.kw, s.sh, s.sw, s.ph, s.pw, s.dh, s.dw)
    operands = [x, conv_blocked.packed(plan, inner, weights[0]), depthwise_blocked.packed(plan, s, weights[1])]
    for ending in endings:
        operands += ending.operands(plan, s.g)
    plan.step(
        POINTWISE_DEPTHWISE, [out], operands,
        ints=PointwiseDepthwiseInts(
            window=window, channels=inner.ic, rows=rows, strip=strip, blocks=blocks, chunk=chunk,
            inner_flags=endings[0].flags, inner_activation=endings[0].activation, flags=endings[1].flags,
            activation=endings[1].activation,
        ),
        items=items, grain=grain_for(items, inner.macs + s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * (blocks * span(strip) * columns * lanes + 2 * span(strip) * s.w),
    )
