"""Kernels of sorting, selection, and search in sorted rows.

Rows lie along the middle of row-major ``[outer, length, inner]``; values are float, or int64 where is_long.
"""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

FOR_AVX2_ALONE = True  # with AVX-512 they take as long, or longer
SORT_SMALL = 256  # rows that are merged rather than counted
ENTRY_BYTES = 16
_SCRATCH = "(2 * length + SORT_SMALL) entries of ENTRY_BYTES"


class SortInts(NamedTuple):
    """Integers of ``sort``.

    Attributes:
        length: Of a row.
        inner: Rows beside each other.
        kept: How many of the first are wanted.
        is_long: Whether values are int64.
        descending: Whether the greatest come first.
    """

    length: int
    inner: int
    kept: int
    is_long: bool
    descending: bool


SORT = Kernel(
    "sort",
    {"values": "[outer, kept, inner]", "indices": "of int64, likewise", "source": "[outer, length, inner]"},
    SortInts,
    Nothing,
    items="outer * inner",
    scratch=_SCRATCH,
)


class Selection(IntEnum):
    """Which value of a row ``select`` gives."""

    RANK = 0  # the one that `rank` smaller ones precede
    MEDIAN = 1  # the lower one of an even number, or the first NaN
    NAN_MEDIAN = 2  # of what is no NaN
    MODE = 3  # the last of the most frequent value, of the smallest of several


class SelectInts(NamedTuple):
    """Integers of ``select``.

    Attributes:
        length: Of a row.
        inner: Rows beside each other.
        is_long: Whether values are int64.
        selection: Which value is wanted.
        rank: For ``Selection.RANK``, from 0.
    """

    length: int
    inner: int
    is_long: bool
    selection: Selection
    rank: int


SELECT = Kernel(
    "select",
    {"values": "[outer, inner]", "indices": "of int64, likewise", "source": "[outer, length, inner]"},
    SelectInts,
    Nothing,
    items="outer * inner",
    scratch=_SCRATCH,
)


class SearchInts(NamedTuple):
    """Integers of ``search``.

    Attributes:
        length: Of a sorted row.
        values: That are looked for in each row; 0 where all are looked for in one.
        is_long: Whether rows and values are int64.
        right: Whether a value belongs behind those that equal it.
        has_order: Whether there is an order.
    """

    length: int
    values: int
    is_long: bool
    right: bool
    has_order: bool


SEARCH = Kernel(
    "search",
    {
        "places": "of int64, one for each value",
        "sorted": "[rows, length]", "values": "[rows, values]",
        "order?": "of int64, where has_order: the positions of a row as they are sorted",
    },
    SearchInts,
    Nothing,
    items="values",
)


class HistogramInts(NamedTuple):
    """Integers of ``histogram``.

    Attributes:
        elements: Of the source.
        chunk: Elements of an item.
        bins: Of equal width.
    """

    elements: int
    chunk: int
    bins: int


HISTOGRAM = Kernel(
    "histogram",
    {
        "counts": "[chunks][bins] of int64; what lies outside the edges is not counted",
        "source": "[elements]",
        "edges": "lowest and highest; where they are not finite, the kernel traps",
    },
    HistogramInts,
    Nothing,
    items="chunks",
)
