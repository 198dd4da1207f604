"""Kernels of convolutions whose groups have a single channel and a single result, in blocks; see ``blocked_layout``."""

from typing import NamedTuple

from .conv_blocked import Activation, BlockedWindow
from .kernel import Kernel, Nothing


class DepthwiseBlockedInts(NamedTuple):
    """Integers of ``depthwise_blocked``.

    Attributes:
        window: The convolution; its groups have one channel and one result.
        rows: Of results of an item.
        is_plain: Whether the input is ``[n][g][h][w]``.
        lays_out: Whether the rows that an item needs are laid out with their zeros; those of a plain input are.
        flags: What else it does; see `BlockedEnding`.
        activation: See `Activation`.
    """

    window: BlockedWindow
    rows: int
    is_plain: int
    lays_out: int
    flags: int
    activation: Activation


DEPTHWISE_BLOCKED = Kernel(
    "depthwise_blocked",
    {
        "y": "[n][blocks][oh][ow][lanes] = act(scale (sum of w x) + shift + addend)", "x": "[n][blocks][h][w][lanes]",
        "weight": "[blocks][kh][kw][lanes] of `pack_blocked`", "first?": "of `fold_blocked`: only its shift is added",
        "affine?": "of `fold_blocked`", "addend?": "as y", "gate?": "as y",
        "random*": "words of the ops that round stochastically",
    },
    DepthwiseBlockedInts,
    Nothing,
    items="n * blocks * parts of the rows",
    scratch="floats: rows laid out; int32: ow",
)


class DepthwiseInputBlockedInts(NamedTuple):
    """Integers of ``depthwise_input_blocked``.

    Attributes:
        window: The convolution; its groups have one channel and one result.
        rows: Of the gradient of the input of an item.
        flags: What else it does; see `BlockedEnding`.
    """

    window: BlockedWindow
    rows: int
    flags: int


DEPTHWISE_INPUT_BLOCKED = Kernel(
    "depthwise_input_blocked",
    {
        "dx": "[n][blocks][h][w][lanes] = scale (sum of w dy) + shift + addend, 0 where the gate is not above 0",
        "dy": "[n][blocks][oh][ow][lanes]", "weight": "[blocks][kh][kw][lanes] of `pack_blocked`",
        "first?": "of `fold_blocked`: only its shift is added", "affine?": "of `fold_blocked`", "addend?": "as dx",
        "gate?": "as dx", "random*": "words of the ops that round stochastically",
    },
    DepthwiseInputBlockedInts,
    Nothing,
    items="n * blocks * parts of the rows",
    scratch="int64: 5 (sh + sw)",
)
