"""Kernels of look-ups in tables of rows, of sums into them, and of bags of rows.

A bucketed index is a pair of LONG[rows + 1] offsets and LONG[n] positions in the order of the rows that they name.
"""

from enum import IntEnum
from typing import NamedTuple

from .convert import Stored
from .kernel import Kernel, Nothing

MAX_INDEX_DIMS = 8
MAX_INDICES = 8
"""Dimensions and index tensors of a flat index."""
BAG_COLUMNS = 16
"""Columns of an item of `bag_max_grad`."""
ROWS_AHEAD = 8
FETCHED_BYTES = 512
"""How many rows ahead `take_rows` fetches one, and how much of it: what follows the processor sees coming by itself."""
CACHED_TABLE = 1 << 20  # bytes up to which a table is taken to lie in a cache
ELEMENTS_TOGETHER = 8
LISTED = 2048  # elements whose places are listed, for all tables that take the same ones
"""Rows of one element are taken in a loop of their own where so many lie between two tables."""


class BagMode(IntEnum):
    """What becomes of the rows of a bag; torch.nn.EmbeddingBag."""

    SUM = 0
    MEAN = 1
    MAXIMUM = 2


class TakeRowsInts(NamedTuple):
    """Integers of ``take_rows``.

    Attributes:
        rows: Of the table.
        taken: Rows that are taken for each outer place.
        row_bytes: Bytes of a row.
        step_bytes: From a row of the result to the next.
        parts: Of a row, which lie apart in the result.
        part_step_bytes: From one of them to the next.
        index_bytes: Size of an index.
        wraps: Whether negative indices count from the end.
        period: Length of the index: `taken`, or as much for each outer place.
    """

    rows: int
    taken: int
    row_bytes: int
    step_bytes: int
    parts: int
    part_step_bytes: int
    index_bytes: int
    wraps: bool
    period: int


TAKE_ROWS = Kernel(
    "take_rows", {"out": "[outer][taken][row]", "table": "[outer][rows][row]", "index": "[period]"},
    TakeRowsInts, Nothing, items="outer * taken",
)


class BucketInts(NamedTuple):
    """Integers of ``bucket``.

    Attributes:
        rows: Of the table.
        length: Of the index.
        index_bytes: Size of an index.
        wraps: Whether negative indices count from the end.
        skipped: The row whose positions are left out; -1 for none.
    """

    rows: int
    length: int
    index_bytes: int
    wraps: bool
    skipped: int


BUCKET = Kernel(
    "bucket", {"offsets": "LONG[rows + 1]", "order": "LONG[length]", "index": "[length]"}, BucketInts, Nothing,
    items="1",
)


class SumRowsInts(NamedTuple):
    """Integers of ``sum_rows``.

    Attributes:
        rows: Of the result.
        source_rows: Rows of the source.
        inner: Elements of a row.
        has_base: Whether sums are added to a base, and not to zero.
        source_row: Stride of the source from row to row; 0 for one row for all.
        source_column: Stride within a row; 0 for one number.
        parts: Of a row of the source, each of which is one stretch.
        source_part: Stride from one of them to the next.
    """

    rows: int
    source_rows: int
    inner: int
    has_base: bool
    source_row: int
    source_column: int
    parts: int = 1
    source_part: int = 0


class SumRowsScalars(NamedTuple):
    """Real numbers of ``sum_rows``.

    Attributes:
        alpha: Factor of the sums.
    """

    alpha: float


SUM_ROWS = Kernel(
    "sum_rows",
    {
        "out": "base + alpha * sum of the row's sources, [outer][rows][inner]", "base": "likewise, or anything",
        "source": "[outer][source_rows][inner]", "offsets": "of the bucketed index", "order": "likewise",
    },
    SumRowsInts, SumRowsScalars, items="outer * rows",
)


class SumTakenRowsInts(NamedTuple):
    """Integers of ``sum_taken_rows``.

    Attributes:
        rows: Of the result.
        inner: Elements of a row.
        has_base: Whether sums are added to a base, and not to zero.
        table_rows: Of the table.
        index_bytes: Size of an index; 0 where the rows of the table are the sources, in their order.
        wraps: Whether negative indices count from the end.
        has_factor: Whether rows are multiplied by factors.
        factor_row: Stride of the factors from source to source.
        parts: Of a row, each of which has a factor.
        factor_part: Stride of the factors from part to part.
    """

    rows: int
    inner: int
    has_base: bool
    table_rows: int
    index_bytes: int
    wraps: bool
    has_factor: bool
    factor_row: int
    parts: int
    factor_part: int


SUM_TAKEN_ROWS = Kernel(
    "sum_taken_rows",
    {
        "out": "base + alpha * sum of factor * the row of the table of each of the row's sources, [rows][inner]",
        "base": "likewise, or anything", "table": "[table_rows][inner]", "offsets": "of the bucketed sources",
        "order": "likewise", "index": "of the row of each source, or anything",
        "factor": "[sources][parts], or anything",
    },
    SumTakenRowsInts, SumRowsScalars, items="rows",
)


class PutRowsInts(NamedTuple):
    """Integers of ``put_rows``.

    Attributes:
        rows: Of the result.
        source_rows: Rows of the source.
        inner: Elements of a row.
        element_bytes: Size of an element.
        source_row: Stride of the source from row to row, in elements.
        source_column: Stride within a row, 0 or 1.
    """

    rows: int
    source_rows: int
    inner: int
    element_bytes: int
    source_row: int
    source_column: int


PUT_ROWS = Kernel(
    "put_rows",
    {
        "out": "[outer][rows][inner]; the last source of a row wins", "base": "likewise",
        "source": "[outer][source_rows][inner]", "offsets": "of the bucketed index", "order": "likewise",
    },
    PutRowsInts, Nothing, items="outer * rows",
)


class IndexLayout(NamedTuple):
    """One tensor of a flat index.

    Attributes:
        extent: Of what it indexes; negative ones count from its end.
        factor: By which its index is multiplied.
        index_bytes: Size of an index.
        strides: Of each dimension; 0 where it is broadcast.
    """

    extent: int
    factor: int
    index_bytes: int
    strides: tuple[int, int, int, int, int, int, int, int]


class FlattenIndexInts(NamedTuple):
    """Integers of ``flatten_index``.

    Attributes:
        tensors: How many there are.
        dims: Dimensions of the index.
        sizes: Of each of them.
        layouts: An `IndexLayout` of each tensor.
    """

    tensors: int
    dims: int
    sizes: tuple[int, int, int, int, int, int, int, int]
    layouts: tuple[IndexLayout, ...]


FLATTEN_INDEX = Kernel(
    "flatten_index", {"out": "LONG, the sums of the indices times their factors", "indices*": "at most MAX_INDICES"},
    FlattenIndexInts, Nothing, items="positions",
)


class BagRowsInts(NamedTuple):
    """Integers of ``bag_rows``.

    Attributes:
        rows: Of the table.
        width: Of a row.
        length: Of the index.
        bags: How many there are.
        mode: What becomes of the rows of a bag.
        index_bytes: Size of an index.
        padding: The row that counts for nothing; -1 for none.
        has_weights: Whether each position has one.
        stored: As what the table lies in memory; others are of floats.
    """

    rows: int
    width: int
    length: int
    bags: int
    mode: BagMode
    index_bytes: int
    padding: int
    has_weights: bool
    stored: Stored


BAG_ROWS = Kernel(
    "bag_rows",
    {
        "out": "[bags][width]; empty bags are zero", "sizes": "LONG[bags]",
        "winners": "LONG[bags][width] of a maximum, 0 of an empty bag", "table": "[rows][width]", "index": "[length]",
        "offsets": "[bags]", "weights": "[length], or anything",
    },
    BagRowsInts, Nothing, items="bags", scratch="floats of a row of halves",
)


class BagOfInts(NamedTuple):
    """Integers of ``bag_of``.

    Attributes:
        length: Of the index.
        bags: How many there are.
        index_bytes: Size of an offset.
    """

    length: int
    bags: int
    index_bytes: int


BAG_OF = Kernel(
    "bag_of", {"out": "LONG[length], the bag of each position", "offsets": "[bags]"}, BagOfInts, Nothing, items="1",
)


class BagRowsGradInts(NamedTuple):
    """Integers of ``bag_rows_grad``.

    Attributes:
        width: Of a row.
        is_mean: Whether gradients are divided by the size of the bag.
        has_weights: Whether each position has one.
        scales_by_count: Whether they are divided by how often the row is named.
    """

    width: int
    is_mean: bool
    has_weights: bool
    scales_by_count: bool


BAG_ROWS_GRAD = Kernel(
    "bag_rows_grad",
    {
        "out": "[rows][width]", "dy": "[bags][width]", "offsets": "of the bucketed index", "order": "likewise",
        "bag_of": "LONG[length]", "sizes": "LONG[bags]", "weights": "[length], or anything",
    },
    BagRowsGradInts, Nothing, items="rows",
)


class BagMaxGradInts(NamedTuple):
    """Integers of ``bag_max_grad``.

    Attributes:
        width: Of a row.
        bags: How many there are.
        rows: Of the table.
    """

    width: int
    bags: int
    rows: int


BAG_MAX_GRAD = Kernel(
    "bag_max_grad",
    {
        "out": "[rows][width], zeroed before", "dy": "[bags][width]",
        "winners": "LONG[bags][width]; those of an empty bag say nothing", "sizes": "LONG[bags]",
    },
    BagMaxGradInts, Nothing, items="panels of BAG_COLUMNS columns",
)


class BagWeightsGradInts(NamedTuple):
    """Integers of ``bag_weights_grad``.

    Attributes:
        width: Of a row.
        rows: Of the table.
        index_bytes: Size of an index.
        padding: The row that counts for nothing; -1 for none.
    """

    width: int
    rows: int
    index_bytes: int
    padding: int


BAG_WEIGHTS_GRAD = Kernel(
    "bag_weights_grad",
    {
        "out": "[length]", "dy": "[bags][width]", "table": "[rows][width]", "index": "[length]",
        "bag_of": "LONG[length]",
    },
    BagWeightsGradInts, Nothing, items="positions",
)


class NamedRowsInts(NamedTuple):
    """Integers of ``scale_by_count`` and ``renorm_rows``.

    Attributes:
        width: Of a row.
    """

    width: int


SCALE_BY_COUNT = Kernel(
    "scale_by_count", {"out": "[rows][width], each row divided by how often it is named", "offsets": "LONG[rows + 1]"},
    NamedRowsInts, Nothing, items="rows",
)


class RenormRowsScalars(NamedTuple):
    """Real numbers of ``renorm_rows``.

    Attributes:
        largest: Norm to which rows that an index names are scaled down.
        exponent: Of the norm.
    """

    largest: float
    exponent: float


RENORM_ROWS = Kernel(
    "renorm_rows", {"out": "[rows][width]", "table": "likewise", "offsets": "LONG[rows + 1]"},
    NamedRowsInts, RenormRowsScalars, items="rows",
)
