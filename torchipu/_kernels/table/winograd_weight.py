"""Kernels of the gradients of weights by Winograd's F(2x2, 3x3), with channels in blocks; see ``blocked_layout``."""

from typing import NamedTuple

from .conv_blocked import BlockedWindow
from .kernel import Kernel, Nothing


class WinogradWeightInts(NamedTuple):
    """Integers of ``winograd_weight``.

    Attributes:
        window: The convolution: three by three, of one group, without stride or dilation.
        tiles: Of a group of them, each of two by two results.
        channels: Blocks of channels of an item.
        results: Blocks of results of an item.
        chunks: Parts of the groups of tiles, each of which is summed by itself.
    """

    window: BlockedWindow
    tiles: int
    channels: int
    results: int
    chunks: int


WINOGRAD_WEIGHT = Kernel(
    "winograd_weight",
    {
        "dw": "[chunks][m][c][3][3]", "dy": "[n][blocks of results][oh][ow][lanes]",
        "x": "[n][blocks of channels][h][w][lanes]",
    },
    WinogradWeightInts,
    Nothing,
    items="chunks * parts of the blocks of channels * parts of the blocks of results",
    scratch="floats: 16 * ((channels + results) * tiles + channels * results * lanes) * lanes + 768; 9 * lanes * lanes",
)
