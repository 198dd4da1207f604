"""Host steps that normalise groups of channels, which lie in blocks."""

from __future__ import annotations

from torchipu._kernels.table.group_norm_blocked import (
    GROUP_FACTORS_BLOCKED,
    GROUP_MOMENTS_BLOCKED,
    GroupNormBlockedInts,
)
from torchipu._kernels.table.norm import NormScalars
from torchipu.host.emit.conv_blocked import Ending
from torchipu.host.emit.items import grain_for
from torchipu.host.emit.pool_blocked import emit_end
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.blocked import Sizes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

PART_PIXELS = 256  # of an item: they stay in a first-level cache from pass to pass, and sums of floats stay short
LEAST_ELEMENTS = 16384  # of a chunk of items


def emit(
    plan: HostPlanner, sizes: Sizes, groups: int, y: HostTensor, x: HostTensor,
    statistics: tuple[HostTensor, HostTensor], weight: HostTensor | None, bias: HostTensor | None, epsilon: float,
    ending: Ending,
) -> None:
    """Emit a normalisation, and what follows it.

    Args:
        plan: The planner.
        sizes: Of the images.
        groups: Of the channels.
        y: Results in the blocked layout.
        x: Images, likewise.
        statistics: Means and reciprocals of deviations, ``[N, groups]``.
        weight: By which each channel is multiplied, if by anything.
        bias: Added to each channel at last, if anything is.
        epsilon: Added to the variance.
        ending: What follows.
    """
    images, channels, height, width = sizes
    pixels, lanes = height * width, vector_lanes()
    blocks, parts = -(-channels // lanes), -(-pixels // PART_PIXELS)
    ints = GroupNormBlockedInts(channels, pixels, groups, PART_PIXELS, weight is not None, bias is not None)
    partials = plan.scratch((images, blocks, parts, 2, lanes))
    items = images * blocks * parts
    plan.step(
        GROUP_MOMENTS_BLOCKED, [partials], [x], ints=ints, items=items,
        grain=grain_for(items, x.num_elements, LEAST_ELEMENTS),
    )
    factor, shift = (plan.scratch((images, blocks, 1, 1, lanes)) for _ in range(2))
    affine = [held for held in (weight, bias) if held is not None]
    plan.step(
        GROUP_FACTORS_BLOCKED, [*statistics, factor, shift], [partials, *affine], ints=ints,
        scalars=NormScalars(epsilon), items=images * groups,
        grain=grain_for(images * groups, partials.num_elements, LEAST_ELEMENTS),
    )
    emit_end(plan, sizes, y, x, ending, factor, shift)
