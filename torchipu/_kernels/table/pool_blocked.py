"""Kernels of pooling, and of what is done to each element, over channels in blocks; see ``blocked_layout``."""

from enum import IntEnum
from typing import NamedTuple

from .conv_blocked import Activation, BlockedWindow
from .kernel import Kernel, Nothing


class Pooling(IntEnum):
    """What is taken of a window."""

    MAXIMUM = 0  # NaN where there is one
    AVERAGE = 1  # of the pixels in it
    AVERAGE_WITH_PADDING = 2


class PoolBlockedInts(NamedTuple):
    """Integers of ``pool_blocked``.

    Attributes:
        window: Its `g` counts blocks, `c` and `m` are 1.
        pooling: See `Pooling`.
        divisor: Of sums; 0 for the pixels that `pooling` tells.
    """

    window: BlockedWindow
    pooling: Pooling
    divisor: int


POOL_BLOCKED = Kernel(
    "pool_blocked", {"y": "[n][blocks][oh][ow][lanes]", "x": "[n][blocks][h][w][lanes]"}, PoolBlockedInts, Nothing,
    items="n * blocks * oh",
)


class MeanBlockedInts(NamedTuple):
    """Integers of ``mean_blocked``.

    Attributes:
        h: Rows of a plane.
        w: Its columns.
    """

    h: int
    w: int


MEAN_BLOCKED = Kernel(
    "mean_blocked", {"y": "[n][blocks][lanes]", "x": "[n][blocks][h][w][lanes]"}, MeanBlockedInts, Nothing,
    items="n * blocks",
)


class EndBlockedInts(NamedTuple):
    """Integers of ``end_blocked``.

    Attributes:
        channels: Of an image.
        pixels: Of a plane.
        has_factor: Whether each channel of each image is multiplied by a number.
        has_shift: Whether a number is then added to it; only where there is a factor.
        flags: See `BlockedEnding`.
        activation: See `Activation`.
    """

    channels: int
    pixels: int
    has_factor: int
    has_shift: int
    flags: int
    activation: Activation


END_BLOCKED = Kernel(
    "end_blocked",
    {
        "y": "[n][blocks][pixels][lanes] = act(scale x + shift + addend), or act(factor x + shift)", "x": "likewise",
        "factor?": "[n][blocks][lanes]", "shift?": "[n][blocks][lanes]",
        "first?": "of `fold_blocked`: only its shift is added",
        "affine?": "of `fold_blocked`", "addend?": "as y", "gate?": "as y",
        "random*": "words of the ops that round stochastically",
    },
    EndBlockedInts,
    Nothing,
    items="n * blocks",
)
