"""Kernels of two-dimensional convolutions of few channels, and of their gradients; conv_product.py serves many."""

from typing import NamedTuple

from .kernel import Kernel, Nothing
from .pool import PoolInts
from .round_blocks import HalfOverflow

CONV_UNITS = 16
"""The most units that are expanded together."""


class ConvShape(NamedTuple):
    """What every convolution begins with; channels are those of one group.

    Attributes:
        n: Images.
        g: Groups.
        ic: Input channels.
        oc: Output channels.
        h: Rows of the input.
        w: Its columns.
        oh: Rows of the result.
        ow: Its columns.
        kh: Rows of the window.
        kw: Its columns.
        sh: Stride of rows.
        sw: Stride of columns.
        ph: Padding of rows.
        pw: Padding of columns.
        dh: Dilation of rows.
        dw: Dilation of columns.
        rows: Of results at a time.
        cols: Likewise; fewer than all only where there is one row.
        direct: Whether summands are read where they lie, and not expanded.
    """

    n: int
    g: int
    ic: int
    oc: int
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
    rows: int
    cols: int
    direct: bool


class ConvForwardInts(NamedTuple):
    """Integers of ``conv_forward``.

    Attributes:
        shape: Of the convolution.
        has_bias: Whether there is one.
    """

    shape: ConvShape
    has_bias: bool


CONV_FORWARD = Kernel(
    "conv_forward",
    {
        "y": "[n][g * oc][oh][ow]", "x": "[n][g * ic][h][w]", "weight": "turned, [g][ic][kh][kw][oc]",
        "bias?": "[g * oc], where has_bias",
    },
    ConvForwardInts,
    Nothing,
    items="n * g * blocks of rows * blocks of columns",
    scratch="ic * kh * kw offsets (int32, rounded up to 16), then the expanded block",
)


class ConvInputInts(NamedTuple):
    """Integers of ``conv_input``.

    Attributes:
        shape: Of the convolution; whole rows.
        channels: Input channels of an item.
    """

    shape: ConvShape
    channels: int


CONV_INPUT = Kernel(
    "conv_input",
    {"dx": "[n][g * ic][h][w]", "dy": "[n][g * oc][oh][ow]", "weight": "[g * oc][ic][kh][kw]"},
    ConvInputInts,
    Nothing,
    items="n * g * blocks of channels",
    scratch="channels * kh * kw * (rows * ow + oc) floats",
)


class ConvWeightInts(NamedTuple):
    """Integers of ``conv_weight``.

    Attributes:
        shape: Of the convolution.
        chunks: Of the batch, each of which leaves a sum.
        channels: Output channels of an item.
        together: Units (blocks of rows or columns of an image) that are expanded together, at most CONV_UNITS.
    """

    shape: ConvShape
    chunks: int
    channels: int
    together: int


CONV_WEIGHT = Kernel(
    "conv_weight",
    {"partial": "[chunks][g * oc][ic * kh * kw]", "dy": "[n][g * oc][oh][ow]", "x": "[n][g * ic][h][w]"},
    ConvWeightInts,
    Nothing,
    items="chunks * g * blocks of channels",
    scratch="ic * kh * kw offsets (int32, rounded up to 16), then the expanded blocks",
)


class ConvReduceInts(NamedTuple):
    """Integers of ``conv_reduce``.

    Attributes:
        chunks: Sums that are added, in their order.
        elements: Of each.
        block: Elements of an item.
    """

    chunks: int
    elements: int
    block: int


CONV_REDUCE = Kernel(
    "conv_reduce", {"total": "[elements]", "partial": "[chunks][elements]"}, ConvReduceInts, Nothing, items="blocks",
)


class ConvBiasInts(NamedTuple):
    """Integers of ``conv_bias``.

    Attributes:
        n: Images.
        channels: Of all groups.
        pixels: Of an image.
    """

    n: int
    channels: int
    pixels: int


CONV_BIAS = Kernel(
    "conv_bias", {"db": "[channels]", "dy": "[n][channels][pixels]"}, ConvBiasInts, Nothing, items="channels",
)


class ConvMaxPoolInts(NamedTuple):
    """Integers of ``conv_max_pool``.

    Attributes:
        shape: Of the convolution; whole images of one group.
        has_bias: Whether there is one.
        has_relu: Whether a ReLU follows the pool.
        is_rounded: Whether the convolution's results become half before they are pooled.
        is_random: Whether by random words.
        overflow: What becomes of what is too large for a half.
        pool: Of the convolution's results.
    """

    shape: ConvShape
    has_bias: bool
    has_relu: bool
    is_rounded: bool
    is_random: bool
    overflow: HalfOverflow
    pool: PoolInts


CONV_MAX_POOL = Kernel(
    "conv_max_pool",
    {
        "y": "max_pool(conv(x, weight) + bias), or the ReLU of it", "indices": "LONG, flat in the plane of oh * ow",
        "x": "[n][ic][h][w]", "weight": "turned, [ic][kh][kw][oc]", "bias?": "[oc], where has_bias",
        "random?": "random words, where is_random",
    },
    ConvMaxPoolInts,
    Nothing,
    items="images",
    scratch="the convolution's results of an image (rounded up to 16), then as `conv_forward`",
)
"""The convolution's results stay in cache."""
