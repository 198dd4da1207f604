"""Host steps of convolutions whose groups have a single channel, over channels in blocks."""

from __future__ import annotations

from dataclasses import replace

from torchipu._kernels.table.conv_blocked import BlockedWindow
from torchipu._kernels.table.depthwise_blocked import DEPTHWISE_BLOCKED, DepthwiseBlockedInts
from torchipu.host.emit import conv_blocked
from torchipu.host.emit.conv_blocked import Ending
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

LAID_OUT_FLOATS = 5 * 1024  # of the rows of an item: beside the results they stay in a first-level cache of 32 KiB
SIDES = 6  # a row whose windows reach over a side for more than one column in so many is laid out with zeros


def serves(s: Shape) -> bool:
    """Whether the kernel takes a convolution."""
    places = s.n * (s.g + vector_lanes()) * max(s.h * s.w, s.oh * s.ow)
    return s.g > 1 and s.ic == s.oc == 1 and 0 < places < 2**31


def slides(s: Shape) -> bool:
    """Whether windows are among those whose pixels are loaded once for all results, zeros beside the image too."""
    return s.kw in (3, 5, 7) and s.sw <= 2 and s.dw == 1


def emit(
    plan: HostPlanner, s: Shape, out: HostTensor, x: HostTensor, weight: HostTensor, ending: Ending, *,
    is_plain: bool = False,
) -> None:
    """Emit a convolution of single channels.

    Args:
        plan: The planner.
        s: Its sizes.
        out: Results in the blocked layout.
        x: Input, in the blocked layout as well unless ``is_plain``.
        weight: Weights, row-major.
        ending: What becomes of the sums.
        is_plain: Whether the input is row-major.
    """
    lanes = vector_lanes()
    blocks = -(-s.g // lanes)
    columns = (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1

    def floats(rows: int) -> int:
        return ((rows - 1) * s.sh + (s.kh - 1) * s.dh + 1) * columns * lanes

    lays_out = is_plain or (not slides(s) and (s.kw - 1) * s.dw * SIDES > s.ow * s.sw)
    rows = s.oh
    while rows > 1 and (floats(rows) > LAID_OUT_FLOATS or s.n * blocks * -(-s.oh // rows) < LEAST_ITEMS):
        rows = -(-rows // 2)
    items = s.n * blocks * -(-s.oh // rows)
    window = BlockedWindow(s.n, s.g, 1, 1, s.h, s.w, s.oh, s.ow, s.kh, s.kw, s.sh, s.sw, s.ph, s.pw, s.dh, s.dw)
    plan.step(
        DEPTHWISE_BLOCKED, [out], [x, packed(plan, s, weight), *ending.operands(plan, s.g)],
        ints=DepthwiseBlockedInts(window, rows, is_plain, lays_out, ending.flags, ending.activation),
        items=items, grain=grain_for(items, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * floats(rows) if lays_out else 0,
    )


def packed(plan: HostPlanner, s: Shape, weight: HostTensor) -> HostTensor:
    """Return the weights as the kernel reads them, ``[blocks, taps, lanes]``."""
    return conv_blocked.packed(plan, replace(s, g=1, ic=1, oc=s.g), weight)
