"""Kernels of the gradients of a convolution in front of a max-pool, from the gradient of what the pool kept."""

from typing import NamedTuple

from .kernel import Kernel, Nothing

SPARSE_SLACK = 32  # floats that may be touched behind an image, and entries behind a list


class SparseWindow(NamedTuple):
    """Integers of ``sparse_conv_pack``: the weights, and how they lie when they are packed.

    Attributes:
        oc: Output channels.
        ic: Input channels.
        kh: Rows of the window.
        kw: Columns of it.
        run: Floats kept for a row of the window, kw * lanes rounded up to a multiple of 16.
        lanes: Floats kept for the channels of a pixel: ic, or so many that each pixel is on whole vectors.
    """

    oc: int
    ic: int
    kh: int
    kw: int
    run: int
    lanes: int


SPARSE_CONV_PACK = Kernel(
    "sparse_conv_pack", {"packed": "[oc][kh][run]", "weight": "[oc][ic][kh][kw]"}, SparseWindow, Nothing, items="oc"
)


class SparseConvInts(NamedTuple):
    """Integers of ``sparse_conv_backward``.

    Attributes:
        window: Of the convolution.
        n: Images.
        h: Rows of an image.
        w: Columns of it.
        oh: Rows of the convolution's result.
        ow: Columns of it.
        sh: Stride from row to row.
        sw: Stride from column to column.
        ph: Padding above and below.
        pw: Padding left and right.
        images: Of a chunk.
        together: Images whose gradients are listed at once.
        wants_dx: Whether the gradient of x is wanted.
        pooled: Results of the pool in a plane.
        has_relu: Whether a ReLU came after the pool.
    """

    window: SparseWindow
    n: int
    h: int
    w: int
    oh: int
    ow: int
    sh: int
    sw: int
    ph: int
    pw: int
    images: int
    together: int
    wants_dx: bool
    pooled: int
    has_relu: bool


SPARSE_CONV_BACKWARD = Kernel(
    "sparse_conv_backward",
    {
        "dx": "[n][ic][h][w], where wants_dx",
        "partial_dw": "[chunks][oc][kh][run]",
        "partial_db": "[chunks][oc]",
        "pooled_grad": "[n][oc][pooled]",
        "indices": "[n][oc][pooled] of int64, flat in the plane of oh * ow",
        "x": "[n][ic][h][w]",
        "packed": "of `sparse_conv_pack`",
        "passed?": "[n][oc][pooled], results of the ReLU, where has_relu",
    },
    SparseConvInts,
    Nothing,
    items="chunks of images",
    scratch="two copies of the images together; their values, pixels and (two words each) sorted entries; two words "
    "for each pixel of them and one for each channel",
)


class SparseConvReduceInts(NamedTuple):
    """Integers of ``sparse_conv_reduce``.

    Attributes:
        window: Of the convolution.
        chunks: Whose sums are added, in their order.
    """

    window: SparseWindow
    chunks: int


SPARSE_CONV_REDUCE = Kernel(
    "sparse_conv_reduce",
    {
        "dw": "[oc][ic][kh][kw]", "db": "[oc]", "partial_dw": "[chunks][oc][kh][run]", "partial_db": "[chunks][oc]",
    },
    SparseConvReduceInts,
    Nothing,
    items="oc",
    scratch="kh * run floats",
)
