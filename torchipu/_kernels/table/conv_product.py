"""Kernels of convolutions and their gradients as matrix products over columns of pixels, LANES side by side."""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

LANES = 32
"""Pixels of a panel."""


class Order(IntEnum):
    """How weights are read."""

    BY_ROW = 0  # a result's summands adjoin
    GATHERED = 1
    PACKED = 2  # results adjoin
    READY = 3  # packed by `matmul_pack_rows` by blocks of the results of an item
    BY_TAP = 4  # a result's channels adjoin for each tap


class ConvEnding(IntEnum):
    """What else a product does; flags that are added up."""

    HAS_BIAS = 1
    HAS_NORM = 2
    HAS_NORM_WEIGHT = 4
    HAS_NORM_BIAS = 8
    HAS_ADDEND = 16
    IS_RELU = 32
    HAS_GATE = 64
    HAS_FACTOR = 128  # of each result's bias and sum; of convolutions over channels in blocks alone


class Grid(NamedTuple):
    """Lanes over planes of pixels.

    Attributes:
        n: Images.
        g: Groups.
        c: Channels of a group.
        m: Results of a group.
        h: Rows of a source plane.
        w: Its columns.
        gh: Rows of lanes.
        gw: Columns of lanes.
        sh: Rows of the source plane from one lane to the next.
        sw: Columns, likewise.
    """

    n: int
    g: int
    c: int
    m: int
    h: int
    w: int
    gh: int
    gw: int
    sh: int
    sw: int


class GridTarget(NamedTuple):
    """Where lanes go.

    Attributes:
        plane: Elements of a plane of results.
        first: Where lane (0, 0) goes in it.
        down: From lane to lane, down.
        across: Likewise, across.
    """

    plane: int
    first: int
    down: int
    across: int


class GridTap(NamedTuple):
    """Lane (a, b) meets row a * sh + row and column b * sw + column.

    Attributes:
        row: Of the source plane.
        column: Likewise.
        weight: Place in the weights.
    """

    row: int
    column: int
    weight: int


class ConvProductInts(NamedTuple):
    """Integers of ``conv_product``.

    Attributes:
        grid: Of lanes; `h` and `w` are those of a plane of `x`.
        target: Where they go in `y`.
        weight_group: Stride of the weights along groups.
        weight_row: Along results.
        weight_channel: Along channels.
        num_taps: How many there are.
        panels: Of an item.
        rows: Results of an item.
        channels: Of a block.
        segment: Summands of a block that are summed at a time.
        flags: What else it does; see `ConvEnding`.
        order: How weights are read.
        taps: Of the window.
    """

    grid: Grid
    target: GridTarget
    weight_group: int
    weight_row: int
    weight_channel: int
    num_taps: int
    panels: int
    rows: int
    channels: int
    segment: int
    flags: int
    order: Order
    taps: tuple[GridTap, ...]


class ConvProductScalars(NamedTuple):
    """Real numbers of ``conv_product``.

    Attributes:
        epsilon: Of the normalisation.
    """

    epsilon: float


CONV_PRODUCT = Kernel(
    "conv_product",
    {
        "y": "y[m, lane] = act(scale (sum of w[m, channel, tap] x[channel, lane + tap]) + shift + addend)",
        "x": "pixels", "weight": "as it lies", "bias?": "[g * m]", "mean?": "running, [g * m]", "variance?": "likewise",
        "norm_weight?": "[g * m]", "norm_bias?": "[g * m]", "addend?": "as y",
        "gate?": "as y; where it is not above 0, the result is 0",
    },
    ConvProductInts,
    ConvProductScalars,
    items="g * blocks of lanes * blocks of results",
    scratch="floats: panels * LANES * (channels * num_taps + rows), 2 * rows rounded up to 16, where results adjoin "
    "rows * channels * num_taps; int32: channels * num_taps rounded up to 16; ti_source (84 bytes): panels * (num_taps "
    "+ 1) * 4",
)


class ConvProductWeightInts(NamedTuple):
    """Integers of ``conv_product_weight``.

    Attributes:
        grid: Of the convolution.
        num_taps: How many there are.
        lanes: Of a block: a multiple of LANES, within an image unless images are smaller.
        panels: Of summands, of an item.
        rows: Results of an item.
        chunks: Of the lanes, each of which leaves a sum.
        taps: Of the window; their places in the weights say nothing.
    """

    grid: Grid
    num_taps: int
    lanes: int
    panels: int
    rows: int
    chunks: int
    taps: tuple[GridTap, ...]


CONV_PRODUCT_WEIGHT = Kernel(
    "conv_product_weight",
    {"partial": "[chunks][g * m][c * num_taps]", "dy": "[n][g * m][gh][gw]", "x": "pixels"},
    ConvProductWeightInts,
    Nothing,
    items="chunks * g * blocks of results * blocks of summands",
    scratch="floats: lanes * LANES * panels, panels * LANES * rows, lanes * rows; ti_source: lanes / LANES * (num_taps "
    "+ 1) * 4",
)
