"""Kernels of pooling of values that have their channels last; windows are given as tables.

The channels of a position lie side by side, and meet those of other positions as they lie: nothing is transposed.
"""

from typing import NamedTuple

from .kernel import Kernel, Nothing

_TABLE = "[windows along the {}][3] of int64: first position, end and divisor"
_TABLES = {name: _TABLE.format(name) for name in ("depth", "height", "width")}


class WindowRowsInts(NamedTuple):
    """Integers of the kernels over windows of rows of channels.

    Attributes:
        size: Depth, height and width of a volume.
        out: Windows along each of them.
        step: From one position of a window to the next; the means take all.
        channels: Of a position.
        has_indices: Whether places of the largest values are asked for.
        in_floats: Whether means are summed in float, and not in double.
    """

    size: tuple[int, int, int]
    out: tuple[int, int, int]
    step: tuple[int, int, int]
    channels: int
    has_indices: bool = False
    in_floats: bool = False


WINDOW_ROWS_MAX = Kernel(
    "window_rows_max",
    {
        "largest": "[volumes][windows][channels], the first of the largest values, or the last NaN, as ATen has it",
        "indices": "[volumes][windows][channels] of int64, flat in the volume; not written where nobody asks",
        "volumes": "[volumes][positions][channels]",
        **_TABLES,
    },
    WindowRowsInts,
    Nothing,
    items="rows of windows: volumes * out[0] * out[1]",
)
WINDOW_ROWS_MEAN = Kernel(
    "window_rows_mean",
    {"means": "[volumes][windows][channels]", "volumes": "[volumes][positions][channels]", **_TABLES},
    WindowRowsInts,
    Nothing,
    items="rows of windows: volumes * out[0] * out[1]",
)
WINDOW_ROWS_MEAN_BACKWARD = Kernel(
    "window_rows_mean_backward",
    {"volumes_grad": "[volumes][positions][channels]", "means_grad": "[volumes][windows][channels]", **_TABLES},
    WindowRowsInts,
    Nothing,
    items="rows of positions: volumes * size[0] * size[1]",
)


class PlacingRowsInts(NamedTuple):
    """Integers of ``window_rows_add``.

    Attributes:
        outputs: Positions of a volume of the result.
        inputs: Of one that is put into it.
        channels: Of a position.
        block: Channels of an item.
    """

    outputs: int
    inputs: int
    channels: int
    block: int


WINDOW_ROWS_ADD = Kernel(
    "window_rows_add",
    {
        "sums": "[volumes][outputs][channels], the sum of what the indices put at one place",
        "values": "[volumes][inputs][channels]",
        "indices": "[volumes][inputs][channels] of int64, flat in a volume of the result",
    },
    PlacingRowsInts,
    Nothing,
    items="volumes * blocks of channels",
)
