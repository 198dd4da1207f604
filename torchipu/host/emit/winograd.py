"""Host steps of convolutions by Winograd's F(2x2, 3x3), and when they take less time than the sums that define them."""

from __future__ import annotations

from collections.abc import Sequence

from torchipu._kernels.table.conv_blocked import BlockedWindow
from torchipu._kernels.table.winograd import PACK_WINOGRAD, POINTS, WINOGRAD, PackWinogradInts, WinogradInts
from torchipu.host.emit import conv_blocked
from torchipu.host.emit.conv_blocked import SUMMANDS, Ending
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.conv_weights import winograd_ints
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

MOST_BLOCKS = 4  # of results that an item holds the sums of at a time, at most
INPUT_FLOATS = 96 * 1024  # of the sums of an item's tiles: they stay in a second-level cache
TILES = (48, 96)  # of an item, at least and at most: fewer read the weights too often, more gain nothing
# Measured on one thread with vectors of eight lanes, with which both scale: a multiplication and addition, and a tile
# of a channel brought in or out.
MAC_NS, TRANSFORM_NS = 0.024, 5.5
WEIGHT_NS = 0.15  # of a packed weight that an item reads from an outer cache
PACK_NS = 2.0  # of a channel and a result: what packing their sixteen sums takes beyond packing their nine weights


def serves(s: Shape) -> bool:
    """Whether the kernel takes a convolution."""
    is_three = (s.kh, s.kw, s.sh, s.sw, s.dh, s.dw) == (3, 3, 1, 1, 1, 1)
    return is_three and s.g == 1 and min(s.n, s.ic, s.oc, s.oh, s.ow) > 0


def saved_ns(s: Shape, *, packs_ahead: bool = True) -> float:
    """Return the nanoseconds that one thread saves by the transforms; below zero where they cost more.

    Args:
        s: Sizes.
        packs_ahead: Whether weights are packed once for many calls.
    """
    lanes = vector_lanes()
    results = -(-s.oc // lanes) * lanes
    direct = MAC_NS * s.n * s.oh * s.ow * s.summands * results
    multiplied = MAC_NS * POINTS * _tiles(s) * s.ic * results
    transformed = TRANSFORM_NS * _tiles(s) * (s.ic + results)
    # Both read their weights again for each group of pixels: nine of a channel, or as many as there are points.
    more = POINTS * _groups(s) - s.kh * s.kw * conv_blocked.readings(s)
    read = WEIGHT_NS * s.ic * results * max(0, more)
    packed = 0.0 if packs_ahead else PACK_NS * s.ic * results
    return (direct - multiplied - transformed) * 8 / lanes - read - packed


def input_shape(s: Shape) -> Shape:
    """Return the sizes of the convolution that gives the gradient of the input of one of three by three."""
    return Shape(s.n, s.g, s.oc, s.ic, s.oh, s.ow, s.h, s.w, 3, 3, 1, 1, 2 - s.ph, 2 - s.pw, 1, 1)


def emit_input_gradient(
    plan: HostPlanner, s: Shape, dx: HostTensor, dy: HostTensor, weight: HostTensor, ending: Ending
) -> None:
    """Emit the gradient of the input of a convolution, whose sizes are given; see `emit`."""
    ints = PackWinogradInts(s.ic, s.oc, 9, 9 * s.ic, 1, is_turned=True)
    _emit(plan, input_shape(s), [dx], [dy, weight], ending, ints)


def emit(plan: HostPlanner, s: Shape, out: HostTensor, x: HostTensor, weight: HostTensor, ending: Ending) -> None:
    """Emit a convolution.

    Args:
        plan: The planner.
        s: Its sizes.
        out: Results in the blocked layout.
        x: Input, likewise.
        weight: Weights, row-major or with their channels last.
        ending: What becomes of the sums.
    """
    _emit(plan, s, [out], [x, weight], ending, PackWinogradInts(s.oc, s.ic, 9 * s.ic, 9, 1, is_turned=False))


def _emit(
    plan: HostPlanner, s: Shape, outputs: Sequence[HostTensor], operands: Sequence[HostTensor], ending: Ending,
    weights: PackWinogradInts,
) -> None:
    x, weight = operands
    lanes = vector_lanes()
    blocks_in, blocks_out = -(-s.ic // lanes), -(-s.oc // lanes)
    groups = _groups(s)
    tiles = -(-_tiles(s) // groups)
    results = -(-blocks_out // min(blocks_out, max(1, -(-LEAST_ITEMS // groups))))
    chunk = -(-blocks_in // -(-blocks_in * lanes // SUMMANDS))
    items = groups * -(-blocks_out // results)
    window = BlockedWindow(
        s.n, s.g, s.ic, s.oc, s.h, s.w, s.oh, s.ow, s.kh, s.kw, s.sh, s.sw, s.ph, s.pw, s.dh, s.dw,
    )
    plan.step(
        WINOGRAD, outputs, [x, _packed(plan, weights, weight), *ending.operands(plan, s.oc)],
        ints=WinogradInts(window, tiles, chunk, results, ending.flags, ending.activation), items=items,
        grain=grain_for(items, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * (POINTS * ((blocks_in + MOST_BLOCKS) * tiles * lanes + 32) + tiles),
    )


def _tiles(s: Shape) -> int:
    """Return the tiles of all images, of two by two results each."""
    return s.n * -(-s.oh // 2) * -(-s.ow // 2)


def _groups(s: Shape) -> int:
    """Return the groups of tiles that an item computes each."""
    channels = -(-s.ic // vector_lanes()) * vector_lanes()
    return -(-_tiles(s) // min(max(TILES[0], INPUT_FLOATS // (POINTS * channels)), TILES[1]))


def _packed(plan: HostPlanner, ints: PackWinogradInts, weight: HostTensor) -> HostTensor:
    """Return the weights as the kernel reads them."""
    lanes = vector_lanes()
    blocks = -(-ints.m // lanes)
    held = plan.scratch((POINTS, blocks, ints.c, lanes))
    plan.step(
        PACK_WINOGRAD, [held], [weight], ints=winograd_ints(ints, weight), items=blocks,
        grain=grain_for(blocks, POINTS * ints.m * ints.c, LEAST_CHUNK_MACS),
    )
    return held
