"""Host steps of the gradients of weights of convolutions over channels in blocks."""

from __future__ import annotations

from torchipu._kernels.table.conv_weight_blocked import CONV_WEIGHT_BLOCKED, ConvWeightBlockedInts
from torchipu.host.emit.conv_blocked import parts_of_rows, stays_within, window_of
from torchipu.host.emit.conv_product import emit_reduce
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

PIXELS = 128  # of a strip: sums so short round about as those of eager PyTorch
SUM_FLOATS = 128 * 1024  # of an item: they stay in a second-level cache


def emit(
    plan: HostPlanner, s: Shape, dw: HostTensor, dy: HostTensor, x: HostTensor, *, apart: int | None = None,
) -> None:
    """Emit the gradient of the weights of a convolution that ``conv_blocked`` serves.

    Args:
        plan: The planner.
        s: Its sizes.
        dw: Gradient of the weights, row-major.
        dy: Gradient of the results, in the blocked layout.
        x: Input of the convolution, likewise.
        apart: Blocks of channels from an image of the input to the next where images share some; None for all of one.
    """
    lanes, taps = vector_lanes(), s.kh * s.kw
    blocks_in, blocks_out = -(-s.ic // lanes), -(-s.oc // lanes)
    images, rows = _strip(s)
    width = parts_of_rows(s.ow, PIXELS)
    strips = -(-s.n // images) * -(-s.oh // rows) * -(-s.ow // width)
    parts = -(-blocks_out * lanes * taps * lanes // SUM_FLOATS)
    results = -(-blocks_out // parts)
    items = s.g * blocks_in * -(-blocks_out // results)
    chunks = min(strips, -(-LEAST_ITEMS // items))
    in_place = stays_within(s)
    span, columns = (rows - 1) * s.sh + (s.kh - 1) * s.dh + 1, (width - 1) * s.sw + (s.kw - 1) * s.dw + 1
    laid_out = 0 if in_place else images * span * columns * lanes
    count = s.g * s.oc * s.summands
    window = window_of(s)
    partial = dw if chunks == 1 else plan.scratch((chunks, count))
    plan.step(
        CONV_WEIGHT_BLOCKED, [partial], [dy, x],
        ints=ConvWeightBlockedInts(
            window, images, rows, width, results, chunks, in_place, s.g * blocks_in if apart is None else apart,
        ),
        items=items * chunks,
        grain=grain_for(items * chunks, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * (results * lanes * taps * lanes + laid_out),
    )
    if chunks > 1:
        emit_reduce(plan, dw, partial, chunks, count)


def _strip(s: Shape) -> tuple[int, int]:
    """Return the images of a strip, and the rows of results of each."""
    if s.oh * s.ow <= PIXELS:
        images = max(1, min(s.n, PIXELS // (s.oh * s.ow)))
        return -(-s.n // -(-s.n // images)), s.oh
    rows = max(1, min(s.oh, PIXELS // s.ow))
    return 1, -(-s.oh // -(-s.oh // rows))
