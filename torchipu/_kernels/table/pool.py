"""Kernels of pooling over two dimensions; an item is a plane, one channel of one image."""

from typing import NamedTuple

from .kernel import Kernel, Nothing


class PoolInts(NamedTuple):
    """Integers of ``max_pool``: a pooling by windows.

    Attributes:
        h: Rows of a plane.
        w: Columns of it.
        oh: Rows of the result.
        ow: Columns of it.
        kh: Rows of the window.
        kw: Columns of it.
        sh: Stride from row to row.
        sw: Stride from column to column.
        ph: Padding above and below.
        pw: Padding left and right.
        dh: Dilation of the rows.
        dw: Dilation of the columns.
    """

    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int


MAX_POOL = Kernel(
    "max_pool",
    {
        "y": "[planes][oh][ow], the largest of each window, or the last NaN",
        "indices": "[planes][oh][ow] of int64, flat in the plane: the first of the largest, or the last NaN",
        "x": "[planes][h][w]",
    },
    PoolInts,
    Nothing,
    items="planes",
)


MAX_POOL_VALUES = Kernel(
    "max_pool_values",
    {"y": "[planes][oh][ow], the largest of each window, or a NaN of it", "x": "[planes][h][w]"},
    PoolInts,
    Nothing,
    items="planes",
    scratch="oh * ow of int64",
)


class PlacingInts(NamedTuple):
    """Integers of kernels that put values where indices say.

    Attributes:
        outputs: Positions of a result.
        inputs: Values that are put into it.
    """

    outputs: int
    inputs: int


MAX_POOL_BACKWARD = Kernel(
    "max_pool_backward",
    {
        "images_grad": "[planes][outputs], the sum of what the indices put at one place",
        "pooled_grad": "[planes][inputs]",
        "indices": "[planes][inputs] of int64, flat in the result",
    },
    PlacingInts,
    Nothing,
    items="planes",
)


class AveragePoolInts(NamedTuple):
    """Integers of ``avg_pool`` and ``avg_pool_backward``.

    Attributes:
        window: Of the pooling; its dilation is 1.
        counts_padding: Whether padding counts among the pixels by whose number a sum is divided.
        divisor: What it is divided by instead; 0 for that number.
    """

    window: PoolInts
    counts_padding: bool
    divisor: int


AVG_POOL = Kernel(
    "avg_pool", {"y": "[planes][oh][ow]", "x": "[planes][h][w]"}, AveragePoolInts, Nothing, items="planes"
)
AVG_POOL_BACKWARD = Kernel(
    "avg_pool_backward", {"dx": "[planes][h][w]", "dy": "[planes][oh][ow]"}, AveragePoolInts, Nothing, items="planes",
    scratch="ow + w floats",
)


class AdaptivePoolInts(NamedTuple):
    """Integers of ``adaptive_pool`` and ``adaptive_pool_backward``.

    Window i of a dimension begins at floor(i h / oh) and ends before ceil((i + 1) h / oh).

    Attributes:
        h: Rows of a plane.
        w: Columns of it.
        oh: Rows of the result.
        ow: Columns of it.
    """

    h: int
    w: int
    oh: int
    ow: int


ADAPTIVE_POOL = Kernel(
    "adaptive_pool", {"y": "[planes][oh][ow]", "x": "[planes][h][w]"}, AdaptivePoolInts, Nothing, items="planes"
)
ADAPTIVE_POOL_BACKWARD = Kernel(
    "adaptive_pool_backward", {"dx": "[planes][h][w]", "dy": "[planes][oh][ow]"}, AdaptivePoolInts, Nothing,
    items="planes",
)
