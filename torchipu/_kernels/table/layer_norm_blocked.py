"""Kernel of a normalisation of each pixel over its channels, which lie in blocks; see ``blocked_layout``."""

from typing import NamedTuple

from .kernel import Kernel


class LayerNormBlockedInts(NamedTuple):
    """Integers of ``layer_norm_blocked``.

    Attributes:
        channels: Of an image.
        pixels: Of a plane.
        part: Pixels of an item.
        has_weight: Whether each channel is multiplied by a number at last.
        has_bias: Whether a number is added to each channel at last.
    """

    channels: int
    pixels: int
    part: int
    has_weight: int
    has_bias: int


class LayerNormBlockedScalars(NamedTuple):
    """Numbers of ``layer_norm_blocked``.

    Attributes:
        epsilon: Added to the variance.
    """

    epsilon: float


LAYER_NORM_BLOCKED = Kernel(
    "layer_norm_blocked",
    {
        "y": "[n][blocks][pixels][lanes]", "x": "likewise; what lies behind the last channel is not counted",
        "weight?": "[channels]", "bias?": "[channels]",
    },
    LayerNormBlockedInts,
    LayerNormBlockedScalars,
    items="n * parts of the pixels",
    scratch="floats: 2 * blocks * lanes",
)
