"""Host steps of the gradients of weights by Winograd's F(2x2, 3x3), and when they take less time than other sums."""

from __future__ import annotations

from torchipu._kernels.table.conv_blocked import BlockedWindow
from torchipu._kernels.table.winograd import POINTS
from torchipu._kernels.table.winograd_weight import WINOGRAD_WEIGHT, WinogradWeightInts
from torchipu.host.emit.conv_product import emit_reduce
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.host.emit.winograd import MAC_NS, TRANSFORM_NS
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

MOST_BLOCKS = 4  # of channels, and of results, of an item
GROUP_FLOATS = 96 * 1024  # of the sums of a group of tiles: they stay in a second-level cache
MOST_TILES = 96
SUM_NS = 0.3  # of a weight of an item, brought out of its sums


def saved_ns(s: Shape) -> float:
    """Return the nanoseconds that one thread saves by the transforms over the sums that define the gradient.

    Args:
        s: The convolution, which ``winograd`` serves.
    """
    lanes = vector_lanes()
    channels, results = (-(-count // lanes) * lanes for count in (s.ic, s.oc))
    cut = _cut(s)
    tiles, parts_in, parts_out = _tiles(s), -(-channels // lanes // cut.channels), -(-results // lanes // cut.results)
    direct = MAC_NS * s.n * s.oh * s.ow * 9 * channels * results
    multiplied = MAC_NS * POINTS * tiles * channels * results
    transformed = TRANSFORM_NS * tiles * (channels * parts_out + results * parts_in)
    return (direct - multiplied - transformed) * 8 / lanes - SUM_NS * 9 * channels * results * cut.chunks


def emit(plan: HostPlanner, s: Shape, dw: HostTensor, dy: HostTensor, x: HostTensor) -> None:
    """Emit the gradient of the weights.

    Args:
        plan: The planner.
        s: Sizes of the convolution.
        dw: Gradient of the weights, row-major.
        dy: Gradient of the results, in the blocked layout.
        x: Input of the convolution, likewise.
    """
    lanes, cut = vector_lanes(), _cut(s)
    blocks_in, blocks_out = -(-s.ic // lanes), -(-s.oc // lanes)
    items = -(-blocks_in // cut.channels) * -(-blocks_out // cut.results) * cut.chunks
    window = BlockedWindow(
        s.n, s.g, s.ic, s.oc, s.h, s.w, s.oh, s.ow, s.kh, s.kw, s.sh, s.sw, s.ph, s.pw, s.dh, s.dw,
    )
    count = s.oc * s.summands
    partial = dw if cut.chunks == 1 else plan.scratch((cut.chunks, count))
    floats = (cut.channels + cut.results) * cut.tiles * lanes + cut.channels * cut.results * lanes * lanes + 48
    plan.step(
        WINOGRAD_WEIGHT, [partial], [dy, x], ints=cut._replace(window=window), items=items,
        grain=grain_for(items, s.macs, LEAST_CHUNK_MACS), scratch_bytes=4 * (POINTS * floats + 9 * lanes * lanes),
    )
    if cut.chunks > 1:
        emit_reduce(plan, dw, partial, cut.chunks, count)


def _tiles(s: Shape) -> int:
    """Return the tiles of all images, of two by two results each."""
    return s.n * -(-s.oh // 2) * -(-s.ow // 2)


def _cut(s: Shape) -> WinogradWeightInts:
    """Return how the work is cut, without its sizes."""
    lanes = vector_lanes()
    channels, results = (
        -(-blocks // -(-blocks // MOST_BLOCKS)) for blocks in (-(-s.ic // lanes), -(-s.oc // lanes))
    )
    most = max(1, min(MOST_TILES, GROUP_FLOATS // (POINTS * (channels + results) * lanes)))
    groups = -(-_tiles(s) // most)
    parts = -(-s.ic // (channels * lanes)) * -(-s.oc // (results * lanes))
    chunks = min(groups, -(-LEAST_ITEMS // parts))
    tiles = -(-_tiles(s) // groups)
    return WinogradWeightInts(_NO_WINDOW, tiles, channels, results, min(chunks, -(-_tiles(s) // tiles)))


_NO_WINDOW = BlockedWindow(*(0,) * len(BlockedWindow._fields))
