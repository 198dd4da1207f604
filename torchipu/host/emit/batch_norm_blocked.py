"""Host steps that normalise channels, which lie in blocks, by the batch's statistics, and the gradient of that."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchipu._kernels.table.batch_norm_blocked import (
    BATCH_FACTORS_BLOCKED,
    BATCH_GRAD_APPLY_BLOCKED,
    BATCH_GRAD_SUMS_BLOCKED,
    BATCH_MOMENTS_BLOCKED,
)
from torchipu._kernels.table.norm import (
    BATCH_GRAD_STATISTICS,
    BATCH_STATISTICS,
    BatchInts,
    BatchScalars,
    NormScalars,
)
from torchipu.host.emit.items import grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.ir.arithmetic import ceil_div
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

LEAST_ELEMENTS = 16384  # of a chunk of items


def emit_statistics(
    plan: HostPlanner, ints: BatchInts, scalars: BatchScalars, statistics: Sequence[HostTensor], x: HostTensor,
    running: Sequence[HostTensor],
) -> None:
    """Emit the statistics of a batch.

    Args:
        plan: The planner.
        ints: Sizes, and how channels are cut.
        scalars: Of the normalisation.
        statistics: Means and reciprocals of deviations, and the new running ones, ``[C]``.
        x: What is normalised, in the blocked layout.
        running: The running means and variances before.
    """
    channels, splits = ints.channels, _splits(ints)
    partials = plan.scratch((channels, splits, 2))
    items = ceil_div(channels, vector_lanes()) * splits
    plan.step(
        BATCH_MOMENTS_BLOCKED, [partials], [x], ints=ints, items=items,
        grain=grain_for(items, x.num_elements, LEAST_ELEMENTS),
    )
    plan.step(
        BATCH_STATISTICS, statistics, [*running, partials], ints=ints, scalars=scalars, items=channels, grain=64,
        writes=[_of_channels(ints)] * len(statistics),
    )


def emit_factors(
    plan: HostPlanner, ints: BatchInts, statistics: Sequence[HostTensor], factors: Sequence[HostTensor],
) -> tuple[HostTensor, HostTensor]:
    """Emit what `Ending.affine` takes of a normalisation.

    Args:
        plan: The planner.
        ints: Sizes, and which factors there are.
        statistics: Means and reciprocals of deviations.
        factors: Weight and bias; anything for an absent one.
    """
    first, affine = (plan.scratch((2, ceil_div(ints.channels, vector_lanes()) * vector_lanes())) for _ in range(2))
    plan.step(BATCH_FACTORS_BLOCKED, [first, affine], [*statistics, *factors], ints=ints)
    return first, affine


def emit_gradient(
    plan: HostPlanner, ints: BatchInts, scalars: NormScalars, gradients: Sequence[HostTensor], dy: HostTensor,
    x: HostTensor, statistics: Sequence[HostTensor], weight: HostTensor,
) -> None:
    """Emit the gradients of a normalisation.

    Args:
        plan: The planner.
        ints: Sizes, and how channels are cut.
        scalars: Of the normalisation.
        gradients: Of the input, in the blocked layout; of weight and bias, ``[C]``.
        dy: Gradient of the result, likewise.
        x: What was normalised, likewise.
        statistics: By which it was: means, and reciprocals of deviations or running variances.
        weight: By which each channel was multiplied; anything where there was none.
    """
    dx, *others = gradients
    mean, spread = statistics
    channels, splits, lanes = ints.channels, _splits(ints), vector_lanes()
    partials = plan.scratch((channels, splits, 2))
    items = ceil_div(channels, lanes) * splits
    plan.step(
        BATCH_GRAD_SUMS_BLOCKED, [partials], [dy, x, mean], ints=ints, items=items,
        grain=grain_for(items, x.num_elements, LEAST_ELEMENTS),
    )
    plan.step(
        BATCH_GRAD_STATISTICS, others, [spread, partials], ints=ints, scalars=scalars, items=channels, grain=64,
        writes=[_of_channels(ints)] * 2,
    )
    items = ints.samples * ceil_div(channels, lanes)
    plan.step(
        BATCH_GRAD_APPLY_BLOCKED, [dx], [dy, x, mean, spread, weight, *others], ints=ints, scalars=scalars,
        items=items, grain=grain_for(items, prod(x.shape), LEAST_ELEMENTS),
    )


def _splits(ints: BatchInts) -> int:
    return ceil_div(ints.samples, ints.rows) * ceil_div(ints.positions, ints.piece)


def _of_channels(ints: BatchInts) -> Blocks:
    """Return what items write that are channels, of a value for each."""
    return Blocks.of((ints.channels,), (1,))
