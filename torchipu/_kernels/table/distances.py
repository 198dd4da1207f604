"""Kernels of the differences of all pairs of rows of two tensors, which are never stored: norms, and weighted sums."""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

PAIR_PANEL = 16  # rows of the other tensor that an item of pair_norms takes
PAIR_BLOCK = 64  # terms that are added up before they join the sum of all


class PairNorm(IntEnum):
    """Which norm of a difference."""

    SUM = 0  # of magnitudes
    EUCLIDEAN = 1
    LARGEST = 2  # magnitude


class PairNormsInts(NamedTuple):
    """Integers of ``pair_norms``.

    Attributes:
        rows: Of the first tensor, in each batch.
        others: Of the second one.
        length: Of a row.
        norm: Which one.
    """

    rows: int
    others: int
    length: int
    norm: PairNorm


class PairSumsInts(NamedTuple):
    """Integers of ``pair_sums``.

    Attributes:
        rows: Of the first tensor, in each batch.
        others: Of the second one.
        length: Of a row.
        of_signs: Whether signs of differences are added up, instead of these.
    """

    rows: int
    others: int
    length: int
    of_signs: bool


PAIR_NORMS = Kernel(
    "pair_norms", {"norms": "[batch, rows, others]", "first": "[batch, rows, length]",
                   "second": "[batch, others, length]"}, PairNormsInts, Nothing,
    items="batch * panels of PAIR_PANEL others", scratch="a panel, [length, PAIR_PANEL] floats",
)
PAIR_SUMS = Kernel(
    "pair_sums", {"sums": "[batch, rows, length]", "first": "[batch, rows, length]",
                  "second": "[batch, others, length]", "weights": "[batch, rows, others]"}, PairSumsInts, Nothing,
    items="batch * rows",
)
