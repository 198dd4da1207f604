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
    """

    length: int
    inner: int
    scanning: Scanning
    is_long: bool


SCAN = Kernel(
    "scan", {"scanned": "[outer, length, inner]", "source": "[outer, length, inner]"}, ScanInts, Nothing, items=_ITEMS
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
