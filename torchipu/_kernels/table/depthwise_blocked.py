"""Kernel of convolutions whose groups have a single channel and a single result, in blocks; see ``blocked_layout``."""

from typing import NamedTuple

from .conv_blocked import Activation, BlockedWindow
from .conv_product import ConvProductScalars
from .kernel import Kernel


class DepthwiseBlockedInts(NamedTuple):
    """Integers of ``depthwise_blocked``.

    Attributes:
        window: The convolution; its groups have one channel and one result.
        rows: Of results of an item.
        is_plain: Whether the input is ``[n][g][h][w]``.
        flags: What else it does; see `ConvEnding`.
        activation: See `Activation`; a flag of `ConvEnding` for one says nothing here.
    """

    window: BlockedWindow
    rows: int
    is_plain: int
    flags: int
    activation: Activation


DEPTHWISE_BLOCKED = Kernel(
    "depthwise_blocked",
    {
        "y": "[n][blocks][oh][ow][lanes] = act(scale (sum of w x) + shift + addend)", "x": "[n][blocks][h][w][lanes]",
        "weight": "[g][kh][kw]", "bias?": "[g]", "mean?": "running, [g]", "variance?": "likewise",
        "norm_weight?": "[g]", "norm_bias?": "[g]", "addend?": "as y",
    },
    DepthwiseBlockedInts,
    ConvProductScalars,
    items="n * blocks * parts of the rows",
    scratch="floats: rows laid out, kh * kw * lanes, 2 * lanes; int32: ow, kh * kw",
)
