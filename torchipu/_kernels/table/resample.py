"""Kernels of interpolation and of overlapping windows."""

from typing import NamedTuple

from .kernel import Kernel, Nothing


class WeightedTapsInts(NamedTuple):
    """Integers of ``weighted_taps``.

    Attributes:
        outputs: Along the dimension.
        inputs: Along the dimension.
        inner: Positions behind it.
    """

    outputs: int
    inputs: int
    inner: int


WEIGHTED_TAPS = Kernel(
    "weighted_taps",
    {
        "sums": "[outer, outputs, inner], of what the taps of an output take, in their order; zero without taps",
        "values": "[outer, inputs, inner]",
        "starts": "[outputs + 1] of int64: the first tap of each output, then the number of all",
        "sources": "of int64: the input that each tap takes",
        "weights": "of each tap",
    },
    WeightedTapsInts,
    Nothing,
    items="outer * outputs",
)


class AddStridedInts(NamedTuple):
    """Integers of ``add_strided``.

    Attributes:
        dims: How many there are.
        layout: Their sizes, then the strides of the sum, then those of the addend.
    """

    dims: int
    layout: tuple[int, ...]


ADD_STRIDED = Kernel(
    "add_strided",
    {"sum": "read and written; its elements do not overlap", "addend": "added to it"},
    AddStridedInts,
    Nothing,
    items="rows of the last dimension",
)
