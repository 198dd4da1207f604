"""Kernels that reduce over any dimensions of a strided operand."""

from enum import IntEnum
from typing import NamedTuple

from .convert import Stored
from .kernel import Kernel, Nothing

REDUCE_DIMS = 8
REDUCE_PANEL = 64  # columns of an item of `reduce_columns`
INTEGER_PANEL = 256  # columns of an item of `reduce_integers`: the rows of a panel of bytes are whole lines
REDUCE_FEW = 8  # values of a row up to which rows lie side by side in a vector: float sums of theirs take four steps

REDUCE_SHORT = 32  # likewise where values lie apart, which a vector of a row would not take at once


class Folding(IntEnum):
    """What becomes of the values that are reduced to one."""

    SUM = 0
    SUM_SQUARES = 1
    SUM_MAGNITUDES = 2
    PRODUCT = 3
    LARGEST = 4
    SMALLEST = 5
    LARGEST_MAGNITUDE = 6


class Integer(IntEnum):
    """Types of integers that are read; bools are bytes without a sign."""

    LONG = 0
    INT = 1
    SHORT = 2
    CHAR = 3
    UNSIGNED_CHAR = 4


class ReduceSpace(NamedTuple):
    """Dimensions of an operand, as they are walked.

    Attributes:
        dims: How many there are.
        shape: Of each.
        strides: In elements.
    """

    dims: int
    shape: tuple[int, int, int, int, int, int, int, int]
    strides: tuple[int, int, int, int, int, int, int, int]


class ReduceInts(NamedTuple):
    """Integers of ``reduce_rows``, ``reduce_columns``, ``reduce_integers`` and ``reduce_bools``.

    Attributes:
        folding: What becomes of the values.
        kept: Dimensions that are kept; where there are columns, without the last one, which is dense.
        reduced: Dimensions that are reduced.
        total: Elements of these.
        chunk: How many of them an item reduces.
        chunks: Into which they are cut.
        root: Whether the square root of the result is taken, after the scale.
        columns: Size of the dense dimension of columns down which is reduced, else 0.
        stored: As what floats lie; of halves and bfloats sums alone are taken, and ``reduce_rows`` those side by side.
        integer: What ``reduce_integers`` reads.
    """

    folding: Folding
    kept: ReduceSpace
    reduced: ReduceSpace
    total: int
    chunk: int
    chunks: int
    root: bool
    columns: int
    stored: Stored = Stored.FLOATS
    integer: Integer = Integer.LONG


class ReduceScalars(NamedTuple):
    """Real numbers of ``reduce_rows`` and ``reduce_columns``.

    Attributes:
        scale: Multiplies the result.
    """

    scale: float


REDUCE_ROWS = Kernel(
    "reduce_rows", {"out": "[results][chunks], float", "source": "float or half"}, ReduceInts, ReduceScalars,
    items="results * chunks",
)
"""Each result by itself."""
REDUCE_COLUMNS = Kernel(
    "reduce_columns", {"out": "[chunks][kept][columns], float", "source": "float or half"}, ReduceInts, ReduceScalars,
    items="kept * panels of REDUCE_PANEL columns * chunks",
)
REDUCE_INTEGERS = Kernel(
    "reduce_integers", {"out": "[kept], LONG", "source": "integers or bools"}, ReduceInts, Nothing,
    items="results, or kept * panels of INTEGER_PANEL columns",
)
"""By SUM or PRODUCT, which wrap, LARGEST or SMALLEST; of nothing these are the ends of LONG."""
REDUCE_BOOLS = Kernel(
    "reduce_bools", {"out": "[kept], BOOL", "source": "BOOL"}, ReduceInts, Nothing,
    items="results, or kept * panels of INTEGER_PANEL columns",
)
"""By LARGEST, which is any, or SMALLEST, which is all."""


class ArgRowsInts(NamedTuple):
    """Integers of ``arg_rows``.

    Attributes:
        extent: Of a row.
        smallest: Whether the smallest is wanted, not the largest.
        is_long: Whether values are LONG, not float.
    """

    extent: int
    smallest: bool
    is_long: bool


ARG_ROWS = Kernel(
    "arg_rows",
    {
        "values": "[rows]", "indices": "[rows], LONG: the first NaN, else the first of equals",
        "source": "[rows][extent]",
    },
    ArgRowsInts,
    Nothing,
    items="rows",
)


class ArgColumnsInts(NamedTuple):
    """Integers of ``arg_columns``.

    Attributes:
        extent: Of a column.
        columns: In each of the matrices that follow one another.
        smallest: Whether the smallest is wanted, not the largest.
        is_long: Whether values are LONG, not float.
    """

    extent: int
    columns: int
    smallest: bool
    is_long: bool


ARG_COLUMNS = Kernel(
    "arg_columns",
    {
        "values": "[matrices][columns]",
        "indices": "[matrices][columns], LONG: the first NaN, else the first of equals",
        "source": "[matrices][extent][columns]",
    },
    ArgColumnsInts,
    Nothing,
    items="matrices * panels of REDUCE_PANEL columns",
)


class MomentRowsInts(NamedTuple):
    """Integers of ``moment_rows``.

    Attributes:
        extent: Of a row.
        root: Whether the deviation is wanted, not the variance.
    """

    extent: int
    root: bool


class MomentRowsScalars(NamedTuple):
    """Real numbers of ``moment_rows``.

    Attributes:
        divisor: Of the sum of squares; with one of at most 0 the result is infinite or NaN, as in eager mode.
    """

    divisor: float


MOMENT_ROWS = Kernel(
    "moment_rows",
    {"spread": "[rows], float", "mean": "[rows], float", "source": "[rows][extent], float"},
    MomentRowsInts,
    MomentRowsScalars,
    items="rows",
)


class LogsumexpRowsInts(NamedTuple):
    """Integers of ``logsumexp_rows``.

    Attributes:
        extent: Of a row.
    """

    extent: int


class LogsumexpLanesInts(NamedTuple):
    """Integers of ``logsumexp_lanes``.

    Attributes:
        extent: Of what is reduced.
        stride: From one element of that to the next.
        are_beside: Whether elements of the last kept dimension lie beside each other; else there are no more than
            REDUCE_SHORT to reduce.
        kept: What is kept.
    """

    extent: int
    stride: int
    are_beside: bool
    kept: ReduceSpace


LOGSUMEXP_LANES = Kernel(
    "logsumexp_lanes", {"out": "[results], float", "source": "by its strides, float"}, LogsumexpLanesInts, Nothing,
    items="results",
)
LOGSUMEXP_ROWS = Kernel(
    "logsumexp_rows", {"out": "[rows], float", "source": "[rows][extent], float"}, LogsumexpRowsInts, Nothing,
    items="rows",
)
