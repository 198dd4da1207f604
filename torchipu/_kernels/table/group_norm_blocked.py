"""Kernels of a normalisation over groups of channels, which lie in blocks; see ``blocked_layout``.

``end_blocked`` then multiplies each channel of each image by its factor and adds its shift.
"""

from typing import NamedTuple

from .kernel import Kernel, Nothing
from .norm import NormScalars


class GroupNormBlockedInts(NamedTuple):
    """Integers of the kernels.

    Attributes:
        channels: Of an image.
        pixels: Of a plane.
        groups: Of the channels; they may begin and end within blocks.
        part: Pixels that are summed by themselves.
        has_weight: Whether each channel is multiplied by a number at last.
        has_bias: Whether a number is added to each channel at last.
    """

    channels: int
    pixels: int
    groups: int
    part: int
    has_weight: int
    has_bias: int


GROUP_MOMENTS_BLOCKED = Kernel(
    "group_moments_blocked",
    {
        "partials": "[n][blocks][parts][2][lanes], means and sums of squares around them",
        "x": "[n][blocks][pixels][lanes]",
    },
    GroupNormBlockedInts,
    Nothing,
    items="n * blocks * parts of the pixels",
)
GROUP_FACTORS_BLOCKED = Kernel(
    "group_factors_blocked",
    {
        "mean": "[n][groups]", "rstd": "[n][groups]", "factor": "[n][blocks][lanes], 0 behind the last channel",
        "shift": "likewise", "partials": "of `group_moments_blocked`", "weight?": "[channels]", "bias?": "[channels]",
    },
    GroupNormBlockedInts,
    NormScalars,
    items="n * groups",
)
