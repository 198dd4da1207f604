"""Kernels of scans along one dimension of row-major ``[outer, length, inner]``.

Values are float, or int64 where is_long. Float sums, products and exponentials accumulate in double; integers wrap.
"""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

SCAN_BLOCK = 64  # neighbouring positions of inner that an item takes
_ITEMS = "outer * blocks of SCAN_BLOCK positions of inner"


class Scanning(IntEnum):
    """How a scan combines values."""

    SUM = 0
    PRODUCT = 1
    LOG_ADD = 2  # the logarithm of the sum of exponentials, of floats only


class ScanInts(NamedTuple):
    """Integers of ``scan``.

    Attributes:
        length: Of a row.
        inner: Rows beside each other.
        scanning: How values are combined.
        is_long: Whether values are int64.
        is_backward: Whether rows are scanned from their end.
    """

    length: int
    inner: int
    scanning: Scanning
    is_long: bool
    is_backward: bool


SCAN = Kernel(
    "scan", {"scanned": "[outer, length, inner]", "source": "[outer, length, inner]"}, ScanInts, Nothing, items=_ITEMS
)


GRADIENT_BLOCK = 32  # places of a row between those of which product_gradient keeps the product so far
GRADIENT_ROWS = 8  # dense rows that it takes at a time


class ProductGradientInts(NamedTuple):
    """Integers of ``product_gradient``.

    Attributes:
        length: Of a row.
        inner: Rows beside each other.
        running: Whether the gradients are those of all products so far, and not of the last one.
    """

    length: int
    inner: int
    running: bool


PRODUCT_GRADIENT = Kernel(
    "product_gradient",
    {
        "gradient": "[outer, length, inner], as cumprod_backward of ATen has it where products are running",
        "given": "of the products: [outer, length, inner] where these are running, else [outer, inner]",
        "factors": "[outer, length, inner]",
    },
    ProductGradientInts,
    Nothing,
    items=_ITEMS,
    scratch="products so far, of each GRADIENT_BLOCK-th place, in double",
)


class ScanExtremesInts(NamedTuple):
    """Integers of ``scan_extremes``.

    Attributes:
        length: Of a row.
        inner: Rows beside each other.
        smallest: Whether the smallest are wanted, not the largest.
        is_long: Whether values are int64.
    """

    length: int
    inner: int
    smallest: bool
    is_long: bool


SCAN_EXTREMES = Kernel(
    "scan_extremes",
    {
        "values": "[outer, length, inner]; NaN stays from where it first stands",
        "indices": "of int64, likewise: the last of equals, or the last NaN",
        "source": "[outer, length, inner]",
    },
    ScanExtremesInts,
    Nothing,
    items=_ITEMS,
)
