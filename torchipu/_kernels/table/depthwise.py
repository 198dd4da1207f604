"""Kernels of convolutions whose groups have a single channel, and of their gradients."""

from typing import NamedTuple

from .conv_product import ConvProductScalars, Grid, GridTap, GridTarget
from .kernel import Kernel, Nothing

TILE_ROWS = 4
"""Rows of results that are summed together."""
TILE_LANES = 32
"""Room beside each other is a multiple of it: two vectors of the widest kind."""
MOST_SHARED = 7
"""The most taps of a column that share what they load."""


class Bands(NamedTuple):
    """How planes are laid out in scratch: rows of several images side by side, columns parted by their stride.

    Attributes:
        images: Side by side.
        rows: Of lanes at a time.
        span: Lanes from one image to the next.
        pitch: Floats of a row of one phase of the columns.
        source_rows: Of scratch.
    """

    images: int
    rows: int
    span: int
    pitch: int
    source_rows: int


class DepthwiseInts(NamedTuple):
    """Integers of ``depthwise``.

    Attributes:
        grid: Of lanes; its groups have one channel.
        target: Where they go in `y`.
        bands: The layout in scratch.
        weight_group: Stride of the weights along groups.
        weight_row: Along results.
        top: Row of the topmost tap.
        left: Column of the leftmost tap.
        columns: Of taps; each has ``shared`` taps below each other.
        shared: Taps of a column that share what they load.
        flags: What else it does; see `ConvEnding`.
        num_taps: columns * shared.
        taps: Column by column.
    """

    grid: Grid
    target: GridTarget
    bands: Bands
    weight_group: int
    weight_row: int
    top: int
    left: int
    columns: int
    shared: int
    flags: int
    num_taps: int
    taps: tuple[GridTap, ...]


DEPTHWISE = Kernel(
    "depthwise",
    {
        "y": "y[m, lane] = act(scale (sum of w[m, tap] x[lane + tap]) + shift + addend)", "x": "pixels",
        "weight": "as it lies", "bias?": "[g * m]", "mean?": "running, [g * m]", "variance?": "likewise",
        "norm_weight?": "[g * m]", "norm_bias?": "[g * m]", "addend?": "as y",
        "gate?": "as y; where it is not above 0, the result is 0",
    },
    DepthwiseInts,
    ConvProductScalars,
    items="g * blocks of images",
    scratch="floats: source_rows * sw * pitch, TILE_ROWS * pitch, num_taps; int32: columns",
)


class DepthwiseWeightInts(NamedTuple):
    """Integers of ``depthwise_weight``.

    Attributes:
        grid: Of the convolution.
        bands: The layout in scratch, of one image.
        top: Row of the topmost tap.
        left: Column of the leftmost tap.
        chunks: Of the images, each of which leaves a sum.
        num_taps: How many there are.
        taps: Of the window, with their places among the weights of a result.
    """

    grid: Grid
    bands: Bands
    top: int
    left: int
    chunks: int
    num_taps: int
    taps: tuple[GridTap, ...]


DEPTHWISE_WEIGHT = Kernel(
    "depthwise_weight",
    {"partial": "[chunks][g * m][num_taps]", "dy": "[n][g * m][gh][gw]", "x": "pixels"},
    DepthwiseWeightInts,
    Nothing,
    items="chunks * g",
    scratch="double: m * num_taps; floats: source_rows * sw * pitch; int32: num_taps",
)
