"""Kernels of convolutions by Winograd's F(2x2, 3x3), whose channels lie in blocks; see ``blocked_layout``."""

from typing import NamedTuple

from .conv_blocked import Activation, BlockedWindow
from .kernel import Kernel, Nothing

POINTS = 16
"""Sums that stand for a tile of four by four pixels, or for a window of weights."""


class WinogradInts(NamedTuple):
    """Integers of ``winograd``.

    Attributes:
        window: The convolution: three by three, of one group, without stride or dilation.
        tiles: Of an item, each of two by two results.
        chunk: Blocks of channels that are summed at a time.
        results: Blocks of results of an item.
        flags: What else it does; see `BlockedEnding`.
        activation: See `Activation`.
    """

    window: BlockedWindow
    tiles: int
    chunk: int
    results: int
    flags: int
    activation: Activation


WINOGRAD = Kernel(
    "winograd",
    {
        "y": "[n][blocks of results][oh][ow][lanes] = act(gate(scale (sum of w x) + shift + addend))",
        "x": "[n][blocks of channels][h][w][lanes]",
        "weight": "packed by `pack_winograd`", "first?": "of `fold_blocked`: only its shift is added",
        "affine?": "of `fold_blocked`", "addend?": "as y", "gate?": "as y: results are 0 where it is not above 0",
        "random*": "words of the ops that round stochastically",
    },
    WinogradInts,
    Nothing,
    items="groups of tiles * parts of the blocks of results",
    scratch="floats: 16 * ((blocks of channels + 4) * tiles * lanes + 32); int32: tiles",
)


class PackWinogradInts(NamedTuple):
    """Integers of ``pack_winograd``.

    Attributes:
        m: Results.
        c: Channels.
        row: From the weights of a result to those of the next.
        channel: From the weights of a channel to those of the next.
        tap: From a weight of a window to the next.
        is_turned: Whether the window is read from its end, as for the gradient of the input.
    """

    m: int
    c: int
    row: int
    channel: int
    tap: int
    is_turned: bool


PACK_WINOGRAD = Kernel(
    "pack_winograd",
    {"y": "[16][blocks of results][c][lanes]", "weight": "nine of a result and channel adjoin"},
    PackWinogradInts,
    Nothing,
    items="blocks of results",
)
