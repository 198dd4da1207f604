"""Kernels of pooling whose windows are given as tables: three-dimensional, adaptive and undone pooling.

An item is a volume (one channel of one image) throughout.
"""

from typing import NamedTuple

from .kernel import Kernel, Nothing
from .pool import PlacingInts

FOR_AVX2_ALONE = True  # with AVX-512 they take as long, or longer
_TABLE = "[windows along the {}][3] of int64: first position, end and divisor"
_TABLES = {name: _TABLE.format(name) for name in ("depth", "height", "width")}


class WindowInts(NamedTuple):
    """Integers of the kernels over windows; each is of depth, height and width.

    Attributes:
        size: Of a volume.
        out: Windows along each dimension.
        step: From one position of a window to the next; the means take all.
    """

    size: tuple[int, int, int]
    out: tuple[int, int, int]
    step: tuple[int, int, int]


WINDOW_MAX = Kernel(
    "window_max",
    {
        "largest": "[volumes][windows], the first of the largest values, or the last NaN, as ATen has it",
        "indices": "[volumes][windows] of int64, flat in the volume",
        "volumes": "[volumes][positions]",
        **_TABLES,
    },
    WindowInts,
    Nothing,
    items="volumes",
)
WINDOW_MEAN = Kernel(
    "window_mean",
    {"means": "[volumes][windows]", "volumes": "[volumes][positions]", **_TABLES},
    WindowInts,
    Nothing,
    items="volumes",
)
WINDOW_MEAN_BACKWARD = Kernel(
    "window_mean_backward",
    {"volumes_grad": "[volumes][positions]", "means_grad": "[volumes][windows]", **_TABLES},
    WindowInts,
    Nothing,
    items="volumes",
)


WINDOW_PLACE = Kernel(
    "window_place",
    {
        "placed": "[volumes][outputs], zero where no index points; of several values at one place the last stays",
        "values": "[volumes][inputs]",
        "indices": "[volumes][inputs] of int64, flat in the result",
    },
    PlacingInts,
    Nothing,
    items="volumes",
)
