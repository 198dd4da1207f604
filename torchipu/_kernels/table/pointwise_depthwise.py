"""Kernel of a convolution of one pixel and the depthwise one behind it, in blocks; see ``blocked_layout``."""

from typing import NamedTuple

from .conv_blocked import Activation, BlockedWindow
from .kernel import Kernel, Nothing


class PointwiseDepthwiseInts(NamedTuple):
    """Integers of ``pointwise_depthwise``.

    Attributes:
        window: The depthwise convolution, of three, five or seven columns, a stride of at most two, no dilation.
        channels: That the convolution of one pixel reads.
        rows: Of results of an item.
        strip: Rows of results for which what lies between the two is held at a time.
        blocks: Of channels of an item.
        chunk: Blocks of the channels that are read, summed at a time.
        inner_flags: What the convolution of one pixel does else; `BlockedEnding`, but no addend.
        inner_activation: At its end.
        flags: What the depthwise one does else; see `BlockedEnding`.
        activation: At its end.
    """

    window: BlockedWindow
    channels: int
    rows: int
    strip: int
    blocks: int
    chunk: int
    inner_flags: int
    inner_activation: Activation
    flags: int
    activation: Activation


POINTWISE_DEPTHWISE = Kernel(
    "pointwise_depthwise",
    {
        "y": "[n][blocks][oh][ow][lanes] = act(scale (sum of w z) + shift + addend)",
        "x": "[n][blocks_in][h][w][lanes]", "inner": "of `pack_blocked`: z = act(scale (sum of inner x) + shift)",
        "weight": "[blocks][kh][kw][lanes], likewise",
        "inner_first?": "of `fold_blocked`: only its shift is added", "inner_affine?": "of `fold_blocked`",
        "inner_random*": "words of the ops of the first convolution that round stochastically",
        "first?": "as that of the first convolution", "affine?": "likewise", "addend?": "as y", "random*": "likewise",
    },
    PointwiseDepthwiseInts,
    Nothing,
    items="n * parts of the rows * parts of the blocks",
    scratch="floats: blocks * rows of a strip's windows * (w + 2 pw) * lanes; int32: two for each pixel of these, ow",
)
