"""Kernels that look at values without changing them: assertions, floating-point exceptions, counts of magnitudes."""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

TALLY_WORDS = 258


class CheckFlag(IntEnum):
    """Bits of what ``check`` knows of an op."""

    ELEMENTWISE = 1  # an operand of the result's size matters at the same place only
    DIVIDES = 2  # an infinity from finite operands with a zero among them is a division by zero
    COMPARES = 4  # invalid on NaN
    GIVEN_INFINITY = 8  # as a number of the op's own
    GIVEN_NAN = 16


class CheckInts(NamedTuple):
    """Integers of ``check``.

    Attributes:
        operands: How many there are.
        results: How many there are.
        flags: Bits of ``CheckFlag``.
        sizes: For each operand and then each result, its elements and whether it is half.
    """

    operands: int
    results: int
    flags: int
    sizes: tuple[int, ...]


CHECK = Kernel("check", {"values*": "operands, then results, float or half"}, CheckInts, Nothing, items="one")
"""An exception is what is not finite although no operand accounts for it."""


REQUIRE = Kernel("require", {"condition": "BOOL[1]; false is a trap"}, Nothing, Nothing, items="one")


class TallyInts(NamedTuple):
    """Integers of ``tally``.

    Attributes:
        elements: Of the values.
        is_half: Whether they are.
    """

    elements: int
    is_half: bool


TALLY = Kernel(
    "tally",
    {
        "words": "[TALLY_WORDS], updated: elements by the exponent of a float, zeros in the first of 256 and NaN and "
        "infinity in the last; the bits of the largest finite magnitude; how many are NaN",
        "values": "float or half",
    },
    TallyInts,
    Nothing,
    items="one",
)
