"""The kernel that converts floats to halves or bfloats, and back, where both lie row-major."""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing


class Conversion(IntEnum):
    """What becomes what."""

    FROM_HALF = 0
    FROM_BFLOAT = 1
    TO_HALF = 2  # rounded to nearest even; too large a value becomes infinity
    TO_BFLOAT = 3  # likewise


class Stored(IntEnum):
    """As what numbers lie in memory that a kernel computes with as floats."""

    FLOATS = 0
    HALVES = 1
    BFLOATS = 2


class ConvertInts(NamedTuple):
    """Integers of ``convert``.

    Attributes:
        conversion: What becomes what.
    """

    conversion: Conversion


CONVERT = Kernel("convert", {"target": "written", "source": "read"}, ConvertInts, Nothing, items="elements")
"""Of any elements the same as of those alone: steps before and behind it may divide them into samples as they do."""
