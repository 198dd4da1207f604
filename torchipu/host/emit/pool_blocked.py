"""Host steps of pooling, and of what is done to each element, over channels in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchipu._kernels.table.conv_blocked import BlockedWindow
from torchipu._kernels.table.pool_blocked import (
    END_BLOCKED,
    MEAN_BLOCKED,
    POOL_BLOCKED,
    EndBlockedInts,
    MeanBlockedInts,
    PoolBlockedInts,
    Pooling,
)
from torchipu.host.emit.conv_blocked import Ending
from torchipu.host.emit.items import grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

LEAST_ELEMENTS = 32768  # read by a chunk of items


def emit_pool(
    plan: HostPlanner, window: BlockedWindow, y: HostTensor, x: HostTensor, pooling: Pooling, divisor: int,
) -> None:
    """Emit pooling.

    Args:
        plan: The planner.
        window: Sizes, with the blocks for groups.
        y: Results.
        x: Pixels.
        pooling: What is taken of a window.
        divisor: Of sums; 0 for the pixels that ``pooling`` tells.
    """
    items = window.n * window.g * window.oh
    reads = items * window.ow * window.kh * window.kw * vector_lanes()
    plan.step(
        POOL_BLOCKED, [y], [x], ints=PoolBlockedInts(window, pooling, divisor), items=items,
        grain=grain_for(items, reads, LEAST_ELEMENTS),
    )


def emit_mean(plan: HostPlanner, y: HostTensor, x: HostTensor) -> None:
    """Emit the mean of each plane of ``x``."""
    items = x.shape[0] * x.shape[1]
    plan.step(
        MEAN_BLOCKED, [y], [x], ints=MeanBlockedInts(*x.shape[2:4]), items=items,
        grain=grain_for(items, x.num_elements, LEAST_ELEMENTS),
    )


def emit_end(
    plan: HostPlanner, shape: Sequence[int], y: HostTensor, x: HostTensor, ending: Ending,
    factor: HostTensor | None = None, shift: HostTensor | None = None,
) -> None:
    """Emit what a convolution does to its sums, by itself.

    Args:
        plan: The planner.
        shape: Of the value, ``[N, C, H, W]``.
        y: Results.
        x: What it is done to.
        ending: What is done.
        factor: A number for each plane, ``[N, blocks, ..., lanes]``, by which it is multiplied first.
        shift: Likewise, added to that; only beside a factor.
    """
    lanes = vector_lanes()
    items = shape[0] * -(-shape[1] // lanes)
    operands = [held for held in (factor, shift, *ending.operands(plan, shape[1])) if held is not None]
    plan.step(
        END_BLOCKED, [y], [x, *operands],
        ints=EndBlockedInts(
            shape[1], prod(shape[2:]), factor is not None, shift is not None, ending.flags, ending.activation,
        ),
        items=items, grain=grain_for(items, prod(shape), LEAST_ELEMENTS),
    )
