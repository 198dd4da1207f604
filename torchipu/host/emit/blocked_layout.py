"""Host steps that bring values into the blocked layout and back.

A value of ``[N, C, H, W]`` lies as ``[N, blocks, H, W, lanes]``: the channels in blocks of as many as a vector of this
machine holds. What lies behind the last channel says nothing, and nothing may come of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from torchipu._kernels.table.blocked_layout import (
    FROM_BLOCKED,
    MOVE_BLOCKED,
    TO_BLOCKED,
    BlockedLayoutInts,
    MoveBlockedInts,
)
from torchipu._kernels.table.kernel import Kernel, Nothing
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.items import grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor, contiguous_strides
from torchipu.optable.planner import HostPlanner

PART_PIXELS = 512  # of an item: what it reads and writes stays in a first-level cache
LEAST_ELEMENTS = 32768  # of a chunk of items
LANES_THIRD = (0, 1, 4, 2, 3)


def blocked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes in the blocked layout of a value of ``[N, C, H, W]``."""
    images, channels, height, width = shape
    lanes = vector_lanes()
    return images, -(-channels // lanes), height, width, lanes


def with_lanes_third(held: HostTensor) -> HostTensor:
    """Return what lies in the blocked layout as ``[N, blocks, lanes, H, W]``, which is never row-major.

    So a value crosses from one plan to another: by its strides the other one knows that it does.
    """
    return held.permuted(LANES_THIRD)


def strides_with_lanes_third(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a value of ``[N, C, H, W]`` that crosses so."""
    strides = contiguous_strides(blocked_shape(shape))
    return tuple(strides[dim] for dim in LANES_THIRD)


def emit_to_blocked(plan: HostPlanner, y: HostTensor, x: HostTensor) -> None:
    """Emit the blocked form of a row-major ``x`` of ``[N, C, H, W]``."""
    _emit(plan, TO_BLOCKED, y, x, x.shape)


def emit_from_blocked(plan: HostPlanner, y: HostTensor, x: HostTensor) -> None:
    """Emit the row-major form ``y``, ``[N, C, H, W]``, of a blocked ``x``."""
    _emit(plan, FROM_BLOCKED, y, x, y.shape)


def emit_move(plan: HostPlanner, y: HostTensor, x: HostTensor, *, source: int, target: int, channels: int) -> None:
    """Emit a copy of neighbouring channels of one blocked value to others of another one, whose other ones stay.

    Args:
        plan: The planner.
        y: Is written, ``[N, blocks, H, W, lanes]``.
        x: Is read, likewise.
        source: The first channel in ``x``.
        target: The first channel in ``y``.
        channels: How many.
    """
    lanes, (images, x_blocks, height, width, _), y_blocks = vector_lanes(), x.shape, y.shape[1]
    items = images * (-(-(target + channels) // lanes) - target // lanes) * -(-height * width // PART_PIXELS)
    plan.step(
        MOVE_BLOCKED, [y], [x],
        ints=MoveBlockedInts(channels, source, target, x_blocks, y_blocks, height * width, PART_PIXELS), items=items,
        grain=grain_for(items, images * channels * height * width, LEAST_ELEMENTS),
    )


def emit_rows_to_blocked(plan: HostPlanner, y: HostTensor, x: HostTensor) -> None:
    """Emit the blocked form of a row-major ``x`` that has its channels last."""
    for held, plain in _parts(y, x):
        emit_copy(plan, held, plain)


def emit_rows_from_blocked(plan: HostPlanner, y: HostTensor, x: HostTensor) -> None:
    """Emit the row-major form ``y``, which has its channels last, of a blocked ``x``."""
    for held, plain in _parts(x, y):
        emit_copy(plan, plain, held)


def _parts(held: HostTensor, plain: HostTensor) -> Iterator[tuple[HostTensor, HostTensor]]:
    """Yield views of a blocked value and of the same with its channels last: whole blocks, and what fills none."""
    images, blocks, height, width, lanes = held.shape
    channels, pixels = plain.shape[-1], height * width
    for first, count, across in ((0, channels // lanes, lanes), (channels // lanes, 1, channels % lanes)):
        shape = (images, count, pixels, across)
        yield (
            HostTensor(held.buffer, held.offset + first * pixels * lanes, shape,
                       (blocks * pixels * lanes, pixels * lanes, lanes, 1), held.dtype),
            HostTensor(plain.buffer, plain.offset + first * lanes, shape,
                       (pixels * channels, lanes, channels, 1), plain.dtype),
        )


def _emit(
    plan: HostPlanner, kernel: Kernel[BlockedLayoutInts, Nothing], y: HostTensor, x: HostTensor, shape: Sequence[int],
) -> None:
    images, channels, pixels = shape[0], shape[1], prod(shape[2:])
    items = images * -(-channels // vector_lanes()) * -(-pixels // PART_PIXELS)
    plan.step(
        kernel, [y], [x], ints=BlockedLayoutInts(channels, pixels, PART_PIXELS), items=items,
        grain=grain_for(items, images * channels * pixels, LEAST_ELEMENTS),
    )
