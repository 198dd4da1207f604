"""Kernels of gathers, scatters and reductions into rows, and of what boolean masks select."""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

SCATTER_PANEL = 64
CHECKED_INDICES = 512  # looked at before what they name is read: they stay in a first-level cache
"""Columns that an item of a scatter takes together, so that they share cache lines."""
MASK_BLOCK = 4096
"""Elements of an item of the kernels of masks."""


class Join(IntEnum):
    """How a source meets what is there; PUT keeps the source, whatever its type."""

    PUT = 0
    ADD = 1
    MULTIPLY = 2
    MAX = 3
    MIN = 4
    MEAN = 5


class GatherBlockInts(NamedTuple):
    """Integers of ``gather_block``.

    Attributes:
        element_bytes: Size of an element.
        index_bytes: Size of an index.
        index_rows: Rows of the index.
        inner: Elements of a row.
        extent: Rows of the table, at least 1.
    """

    element_bytes: int
    index_bytes: int
    index_rows: int
    inner: int
    extent: int


GATHER_BLOCK = Kernel(
    "gather_block",
    {"out": "[outer][index_rows][inner]", "table": "[outer][extent][inner]", "index": "[outer][index_rows][inner]"},
    GatherBlockInts, Nothing, items="outer * index_rows",
)


class ScatterBlockInts(NamedTuple):
    """Integers of ``scatter_block``.

    Attributes:
        element_bytes: Size of an element; what is joined is uint8 where it is 1, int32 where it is 4, int64 where it
            is 8.
        is_float: Whether what is joined is float.
        index_bytes: Size of an index.
        index_rows: Rows of the index.
        inner: Elements of a row.
        extent: Rows of the result.
        source_rows: Rows of the source; 0 for one number for all.
        how: A source meets what is there.
        wraps: Whether negative indices count from the end, where rows have one element.
        shares_index: Whether all outer ones have one index, where rows have one element.
    """

    element_bytes: int
    is_float: bool
    index_bytes: int
    index_rows: int
    inner: int
    extent: int
    source_rows: int
    how: Join
    wraps: bool
    shares_index: bool


SCATTER_BLOCK = Kernel(
    "scatter_block",
    {
        "out": "[outer][extent][inner], written in place", "index": "[outer][index_rows][inner]",
        "source": "[outer][source_rows][inner]",
    },
    ScatterBlockInts, Nothing, items="outer * panels of SCATTER_PANEL columns",
)


class DivideCountsInts(NamedTuple):
    """Integers of ``divide_counts``.

    Attributes:
        is_long: Whether elements are int64, and quotients rounded down.
    """

    is_long: bool


DIVIDE_COUNTS = Kernel(
    "divide_counts", {"out": "in place", "counts": "of what was added, of the same type"}, DivideCountsInts, Nothing,
    items="elements",
)


class TakeStridedInts(NamedTuple):
    """Integers of ``take_strided``.

    Attributes:
        element_bytes: Size of an element.
        taken: Rows that are taken for each outer place.
        outside: Dimensions around the rows, at most 8.
        inside: Dimensions of a row, at most 8.
        inner: Elements of a row.
        layout: Sizes and strides outside, sizes and strides inside.
    """

    element_bytes: int
    taken: int
    outside: int
    inside: int
    inner: int
    layout: tuple[int, ...]


TAKE_STRIDED = Kernel(
    "take_strided",
    {"out": "[outer][taken][inner]", "table": "by its strides", "offsets": "LONG[taken], in elements"},
    TakeStridedInts, Nothing, items="outer * taken",
)


class ReduceIndexedInts(NamedTuple):
    """Integers of ``reduce_indexed``.

    Attributes:
        rows: Of the result.
        source_rows: Rows of the source.
        inner: Elements of a row.
        with_base: Whether the base takes part; rows that no index names keep it in any case.
        source_row: Stride of the source from row to row; 0 for one row for all.
        source_column: Stride within a row; 0 for one number.
        how: Sources meet one another; the mean is of float or int64.
        element_bytes: Size of an element: of uint8, int32 or int64 where it is no float.
        is_float: Whether elements are float.
    """

    rows: int
    source_rows: int
    inner: int
    with_base: bool
    source_row: int
    source_column: int
    how: Join
    element_bytes: int
    is_float: bool


REDUCE_INDEXED = Kernel(
    "reduce_indexed",
    {
        "out": "[outer][rows][inner]", "base": "likewise", "source": "[outer][source_rows][inner]",
        "offsets": "of a bucketed index", "order": "of a bucketed index",
    },
    ReduceIndexedInts, Nothing, items="outer * rows",
)


class MaskCountInts(NamedTuple):
    """Integers of ``mask_count``.

    Attributes:
        elements: Of the mask.
    """

    elements: int


MASK_COUNT = Kernel(
    "mask_count", {"counts": "LONG[blocks]", "mask": "booleans"}, MaskCountInts, Nothing, items="blocks",
)


class MaskedInts(NamedTuple):
    """Integers of ``mask_scatter`` and ``mask_compact``.

    Attributes:
        elements: Of the mask.
        element_bytes: Size of an element.
        selected: Elements of the source of a scatter, or of the result of the other.
    """

    elements: int
    element_bytes: int
    selected: int


MASK_SCATTER = Kernel(
    "mask_scatter",
    {
        "out": "the n-th element where the mask is set takes the n-th of the source, the others the base",
        "base": "[elements]", "source": "[selected]", "mask": "[elements]", "counts": "of `mask_count`",
    },
    MaskedInts, Nothing, items="blocks",
)
MASK_COMPACT = Kernel(
    "mask_compact",
    {
        "out": "[selected], zeroed before; its n-th element is the source where the mask is set for the n-th time",
        "source": "[elements]", "mask": "[elements]", "counts": "of `mask_count`",
    },
    MaskedInts, Nothing, items="blocks",
)


class NonzeroInts(NamedTuple):
    """Integers of ``nonzero``.

    Attributes:
        elements: Of the mask.
        size: Coordinates that there is room for.
        dims: Dimensions of the mask.
        sizes: Of each of them.
    """

    elements: int
    size: int
    dims: int
    sizes: tuple[int, ...]


NONZERO = Kernel(
    "nonzero",
    {
        "out": "LONG[size][dims], filled before: where the mask is set, in order", "mask": "booleans",
        "counts": "of `mask_count`",
    },
    NonzeroInts, Nothing, items="blocks",
)
