"""Host steps that normalise each pixel over its channels, which lie in blocks."""

from __future__ import annotations

from torchipu._kernels.table.layer_norm_blocked import (
    LAYER_NORM_BLOCKED,
    LayerNormBlockedInts,
    LayerNormBlockedScalars,
)
from torchipu.host.emit.items import grain_for
from torchipu.optable.blocked import Sizes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

PART_PIXELS = 16  # of an item: with 768 channels they fill a first-level cache
LEAST_ELEMENTS = 16384  # of a chunk of items


def emit(
    plan: HostPlanner, sizes: Sizes, y: HostTensor, x: HostTensor, weight: HostTensor | None, bias: HostTensor | None,
    epsilon: float,
) -> None:
    """Emit a normalisation.

    Args:
        plan: The planner.
        sizes: Of the images.
        y: Results in the blocked layout.
        x: Pixels, likewise.
        weight: By which each channel is multiplied, if by anything.
        bias: Added to each channel at last, if anything is.
        epsilon: Added to the variance.
    """
    images, channels, height, width = sizes
    items = images * -(-height * width // PART_PIXELS)
    plan.step(
        LAYER_NORM_BLOCKED, [y], [x, *(held for held in (weight, bias) if held is not None)],
        ints=LayerNormBlockedInts(channels, height * width, PART_PIXELS, weight is not None, bias is not None),
        scalars=LayerNormBlockedScalars(epsilon), items=items,
        grain=grain_for(items, images * channels * height * width, LEAST_ELEMENTS),
        scratch_bytes=4 * 2 * y.shape[1] * y.shape[-1],
    )
