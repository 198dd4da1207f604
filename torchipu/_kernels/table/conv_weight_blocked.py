"""Kernels of the gradients of weights of convolutions whose channels lie in blocks; see ``blocked_layout``."""

from typing import NamedTuple

from .conv_blocked import BlockedWindow
from .kernel import Kernel, Nothing


class ConvWeightBlockedInts(NamedTuple):
    """Integers of ``conv_weight_blocked``.

    Attributes:
        window: The convolution.
        images: Of a strip of pixels, with several rows of each, or with some rows of one.
        rows: Of results of each of them.
        columns: Of results of each row.
        results: Blocks of results of an item.
        chunks: Parts of the strips, each of which is summed by itself.
        in_place: Whether the input is read where it lies, as it can be where no window reaches beyond it.
        apart: Blocks of channels from an image of the input to the next, which may share some.
    """

    window: BlockedWindow
    images: int
    rows: int
    columns: int
    results: int
    chunks: int
    in_place: bool
    apart: int


CONV_WEIGHT_BLOCKED = Kernel(
    "conv_weight_blocked",
    {
        "dw": "[chunks][g * m][c][kh][kw]", "dy": "[n][blocks of results][oh][ow][lanes]",
        "x": "[n][blocks of channels][h][w][lanes]",
    },
    ConvWeightBlockedInts,
    Nothing,
    items="chunks * g * blocks of channels * parts of the blocks of results",
    scratch="floats: results * lanes * kh * kw * lanes; rows laid out of a strip",
)
