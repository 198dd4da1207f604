"""Kernels of convolutions whose channels lie in blocks; see ``blocked_layout``."""

from enum import IntEnum
from typing import NamedTuple

from .conv_product import ConvProductScalars
from .kernel import Kernel, Nothing


class Activation(IntEnum):
    """What becomes of a result at last."""

    NONE = 0
    RELU = 1
    RELU6 = 2
    HARDSWISH = 3
    HARDSIGMOID = 4
    SILU = 5
    SIGMOID = 6
    GELU = 7


class BlockedEnding(IntEnum):
    """What else a kernel does; flags that are added up."""

    HAS_AFFINE = 1
    HAS_ADDEND = 2
    HAS_GATE = 4
    HAS_FIRST = 8  # a bias that is added before the sums are rounded
    # Of four ops in this order: the sums, what scales them, the addition, the activation; shifted by the op's number.
    ROUNDS = 16  # to half
    IS_RANDOM = 256  # stochastically, by random words
    CHANNELS_LAST = 4096  # elements are numbered with the channels last
    OVERFLOW = 65536  # times `HalfOverflow`


class BlockedWindow(NamedTuple):
    """Sizes of a convolution, or of pooling.

    Attributes:
        n: Images.
        g: Groups; with several, channels and results of each fill blocks.
        c: Channels of a group.
        m: Results of a group.
        h: Rows of the input.
        w: Its columns.
        oh: Rows of the results.
        ow: Their columns.
        kh: Rows of the window.
        kw: Its columns.
        sh: Stride of the window, down.
        sw: Likewise, across.
        ph: Padding above and below.
        pw: Likewise, beside.
        dh: Distance of the rows of the window.
        dw: Of its columns.
    """

    n: int
    g: int
    c: int
    m: int
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


class BlockedTarget(NamedTuple):
    """Where the results of a plane lie, in pixels: every so many of a larger plane for a phase of a stride.

    Attributes:
        plane: Pixels of the plane.
        first: Where the first result lies.
        down: From a row to the next.
        across: From a column to the next.
    """

    plane: int
    first: int
    down: int
    across: int


class ConvBlockedInts(NamedTuple):
    """Integers of ``conv_blocked``.

    Attributes:
        window: The convolution.
        target: Where its results lie.
        pixels: Results of an item where the input is read where it lies, as without padding it can be; 0 where the
            rows that an item needs are laid out.
        images: Of an item where rows are laid out.
        rows: Of results of each of them.
        columns: Of results of each row.
        chunk: Blocks of channels that are summed at a time.
        results: Blocks of results of an item.
        is_plain: Whether the input is ``[n][g * c][h][w]``; its rows are laid out then.
        flags: What else it does; see `BlockedEnding`.
        activation: See `Activation`.
        apart: Blocks of channels from an image of the input to the next, which may share some; unless ``is_plain``.
    """

    window: BlockedWindow
    target: BlockedTarget
    pixels: int
    images: int
    rows: int
    columns: int
    chunk: int
    results: int
    is_plain: int
    flags: int
    activation: Activation
    apart: int


CONV_BLOCKED = Kernel(
    "conv_blocked",
    {
        "y": "[n][blocks of results][oh][ow][lanes] = act(gate(scale (sum of w x) + shift + addend))",
        "x": "[n][blocks of channels][h][w][lanes]",
        "weight": "packed by `pack_blocked`", "first?": "of `fold_blocked`: only its shift is added",
        "affine?": "of `fold_blocked`", "addend?": "as y", "gate?": "as y: results are 0 where it is not above 0",
        "random*": "words of the ops that round stochastically",
    },
    ConvBlockedInts,
    Nothing,
    items="blocks of pixels * g * parts of the blocks of results",
    scratch="floats: rows laid out of a chunk; int32: 2 * pixels of an item, kh * kw",
)


class PackBlockedInts(NamedTuple):
    """Integers of ``pack_blocked``.

    A weight lies at ``first + group * g + row * m + channel * c + down * i + across * j``.

    Attributes:
        m: Results of a group.
        c: Channels of a group.
        kh: Rows of the window.
        kw: Its columns.
        group: From a group to the next.
        row: From a result to the next.
        channel: From a channel to the next.
        first: Where the first tap of the first channel and result lies.
        down: From a row of the window to the next.
        across: From a column to the next.
    """

    m: int
    c: int
    kh: int
    kw: int
    group: int
    row: int
    channel: int
    first: int
    down: int
    across: int


PACK_BLOCKED = Kernel(
    "pack_blocked",
    {
        "y": "[g][blocks of results][blocks of channels][taps][channels of the block][lanes]",
        "weight": "those of a convolution, which the integers tell the way through",
    },
    PackBlockedInts,
    Nothing,
    items="g * blocks of results",
)


class FoldBlockedInts(NamedTuple):
    """Integers of ``fold_blocked``.

    Attributes:
        channels: All.
        flags: The first four of `ConvEnding`, and ``HAS_FACTOR``.
    """

    channels: int
    flags: int


FOLD_BLOCKED = Kernel(
    "fold_blocked",
    {
        "y": "[2][blocks * lanes]: scale and shift of each channel", "bias?": "[channels]",
        "mean?": "running, [channels]", "variance?": "likewise", "norm_weight?": "[channels]",
        "norm_bias?": "[channels]", "factor?": "[channels]: by which both are multiplied",
    },
    FoldBlockedInts,
    ConvProductScalars,
    items="1",
)
