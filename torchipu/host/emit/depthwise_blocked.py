"""Host steps of convolutions whose groups have a single channel, and of their gradients, over channels in blocks."""

from __future__ import annotations

from dataclasses import replace

from torchipu._kernels.table.depthwise_blocked import (
    DEPTHWISE_BLOCKED,
    DEPTHWISE_INPUT_BLOCKED,
    DepthwiseBlockedInts,
    DepthwiseInputBlockedInts,
)
from torchipu._kernels.table.depthwise_weight_blocked import DEPTHWISE_WEIGHT_BLOCKED, DepthwiseWeightBlockedInts
from torchipu.host.emit import conv_blocked
from torchipu.host.emit.conv_blocked import Ending
from torchipu.host.emit.conv_product import emit_reduce
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

LAID_OUT_FLOATS = 5 * 1024  # of the rows of an item: beside the results they stay in a first-level cache of 32 KiB
STRIP_FLOATS = 16 * 1024  # of rows whose products with results are summed: they stay in a second-level cache
SUMMED = 128  # products of a sum before it is added to others: sums so short round about as those of eager PyTorch
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
    _emit(plan, s, out, x, packed(plan, s, weight), ending, is_plain=is_plain)


def _emit(
    plan: HostPlanner, s: Shape, out: HostTensor, x: HostTensor, weight: HostTensor, ending: Ending, *, is_plain: bool,
) -> None:
    """Emit a convolution whose weights are packed."""
    blocks = -(-s.g // vector_lanes())
    lays_out = is_plain or (not slides(s) and (s.kw - 1) * s.dw * SIDES > s.ow * s.sw)
    rows = s.oh
    while rows > 1 and (_laid_out(s, rows) > LAID_OUT_FLOATS or s.n * blocks * -(-s.oh // rows) < LEAST_ITEMS):
        rows = -(-rows // 2)
    items = s.n * blocks * -(-s.oh // rows)
    plan.step(
        DEPTHWISE_BLOCKED, [out], [x, weight, *ending.operands(plan, s.g)],
        ints=DepthwiseBlockedInts(conv_blocked.window_of(s), rows, is_plain, lays_out, ending.flags, ending.activation),
        items=items, grain=grain_for(items, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * _laid_out(s, rows) if lays_out else 0,
    )


def emit_input_gradient(
    plan: HostPlanner, s: Shape, dx: HostTensor, dy: HostTensor, weight: HostTensor, ending: Ending,
) -> None:
    """Emit the gradient of the input of a convolution of single channels.

    Without strides it is such a convolution itself, of the results' gradient with the weights turned round.

    Args:
        plan: The planner.
        s: Sizes of the convolution.
        dx: Gradient of its input, in the blocked layout.
        dy: Gradient of its results, likewise.
        weight: Weights, row-major.
        ending: What becomes of the sums; no activation.
    """
    ph, pw = (s.kh - 1) * s.dh - s.ph, (s.kw - 1) * s.dw - s.pw
    if s.sh == s.sw == 1 and min(ph, pw) >= 0:
        turned = Shape(s.n, s.g, 1, 1, s.oh, s.ow, s.h, s.w, s.kh, s.kw, 1, 1, ph, pw, s.dh, s.dw)
        _emit(plan, turned, dx, dy, packed(plan, s, weight, is_turned=True), ending, is_plain=False)
        return
    blocks, rows = -(-s.g // vector_lanes()), s.h
    while rows > 1 and s.n * blocks * -(-s.h // rows) < LEAST_ITEMS:
        rows = -(-rows // 2)
    items = s.n * blocks * -(-s.h // rows)
    plan.step(
        DEPTHWISE_INPUT_BLOCKED, [dx], [dy, packed(plan, s, weight), *ending.operands(plan, s.g)],
        ints=DepthwiseInputBlockedInts(conv_blocked.window_of(s), rows, ending.flags),
        items=items, grain=grain_for(items, s.macs, LEAST_CHUNK_MACS), scratch_bytes=8 * 5 * (s.sh + s.sw),
    )


def emit_weight_gradient(plan: HostPlanner, s: Shape, dw: HostTensor, dy: HostTensor, x: HostTensor) -> None:
    """Emit the gradient of the weights of a convolution of single channels.

    Args:
        plan: The planner.
        s: Sizes of the convolution.
        dw: Gradient of the weights, row-major.
        dy: Gradient of the results, in the blocked layout.
        x: Input of the convolution, likewise.
    """
    lanes, taps = vector_lanes(), s.kh * s.kw
    blocks, rows, in_place = -(-s.g // lanes), s.oh, conv_blocked.stays_within(s)
    while rows > 1 and _laid_out(s, rows) > STRIP_FLOATS:
        rows = -(-rows // 2)
    chunks = max(1, min(s.n, -(-LEAST_ITEMS // blocks)))
    partial = dw if chunks == 1 else plan.scratch((chunks, s.g * taps))
    plan.step(
        DEPTHWISE_WEIGHT_BLOCKED, [partial], [dy, x],
        ints=DepthwiseWeightBlockedInts(conv_blocked.window_of(s), rows, max(1, SUMMED // s.ow), chunks, in_place),
        items=blocks * chunks, grain=grain_for(blocks * chunks, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * (taps * lanes + (0 if in_place else _laid_out(s, rows))),
    )
    if chunks > 1:
        emit_reduce(plan, dw, partial, chunks, s.g * taps)


def _laid_out(s: Shape, rows: int) -> int:
    """Return the floats of the rows that so many rows of results need, zeros beside the image included."""
    columns = (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1
    return ((rows - 1) * s.sh + (s.kh - 1) * s.dh + 1) * columns * vector_lanes()


def packed(plan: HostPlanner, s: Shape, weight: HostTensor, *, is_turned: bool = False) -> HostTensor:
    """Return the weights as the kernels read them, ``[blocks, taps, lanes]``, or with the last tap first."""
    return conv_blocked.packed(plan, replace(s, g=1, ic=1, oc=s.g), weight, is_turned=is_turned)
