"""Kernel of the gradients of weights of convolutions whose groups have a single channel, in blocks."""

from typing import NamedTuple

from .conv_blocked import BlockedWindow
from .kernel import Kernel, Nothing


class DepthwiseWeightBlockedInts(NamedTuple):
    """Integers of ``depthwise_weight_blocked``.

    Attributes:
        window: The convolution; its groups have one channel and one result.
        rows: Of results of an image that are taken together.
        summed: Of them whose products are summed before they are added to others.
        chunks: Of the images, each of which leaves a sum.
        in_place: Whether the input is read where it lies, as it can be where no window reaches beyond it.
    """

    window: BlockedWindow
    rows: int
    summed: int
    chunks: int
    in_place: bool


DEPTHWISE_WEIGHT_BLOCKED = Kernel(
    "depthwise_weight_blocked",
    {"dw": "[chunks][g][kh][kw]", "dy": "[n][blocks][oh][ow][lanes]", "x": "[n][blocks][h][w][lanes]"},
    DepthwiseWeightBlockedInts,
    Nothing,
    items="chunks * blocks",
    scratch="floats: kh * kw * lanes; rows laid out",
)
