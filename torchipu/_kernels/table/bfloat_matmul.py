"""Kernels of matrix products of bfloat16, for processors that multiply pairs of them (AVX512_BF16).

Products are exact, sums are floats, and a result is rounded once. One of the strides of an operand from row to row and
from column to column is 1. Strides are in elements.
"""

from typing import NamedTuple

from .conv_blocked import Activation
from .kernel import Kernel, Nothing
from .matmul import MatmulScalars

FOR_BFLOATS_ALONE = True  # a processor without the instruction has no use for them

PAIR_BLOCK = 192
"""Pairs of summands that are added up before their sum is added to that of others: as many as `SUM_BLOCK` has."""


class BfloatPackInts(NamedTuple):
    """Integers of ``bfloat_pack``.

    Attributes:
        inner: Rows of the right operand.
        columns: Its columns.
        batch_stride: From one matrix of it to the next.
        row_stride: From row to row.
        column_stride: From column to column.
        block: Pairs of rows that an item packs.
    """

    inner: int
    columns: int
    batch_stride: int
    row_stride: int
    column_stride: int
    block: int


BFLOAT_PACK = Kernel(
    "bfloat_pack",
    {"packed": "INT [batch][panels][pairs of rows][PANEL], zero beyond the last row and column",
     "right": "bfloats [batch][inner][columns]"},
    BfloatPackInts,
    Nothing,
    items="batch * panels * blocks of pairs",
)


class BfloatMatmulInts(NamedTuple):
    """Integers of ``bfloat_matmul``.

    Attributes:
        rows: Of the product.
        columns: Of the product.
        inner: Summands.
        left_batch: Stride of the left operand from one matrix to the next.
        left_row: From row to row.
        left_column: From column to column.
        right_batch: Stride of the right operand from one matrix to the next, in pairs; 0 where all share one.
        row_block: Rows of an item.
        column_block: Columns of an item, a multiple of 32.
        lies: Whether pairs of the left operand are read as they lie; else an item lays them one behind the other.
        has_addend: Whether there is one.
        addend_batch: Stride of the addend from one matrix to the next.
        addend_row: From row to row.
        addend_column: From column to column.
        adds: Whether to add onto what the product's memory holds, which is float then.
        stores_bfloats: Whether the product is rounded to bfloat16.
        activation: Of the whole.
    """

    rows: int
    columns: int
    inner: int
    left_batch: int
    left_row: int
    left_column: int
    right_batch: int
    row_block: int
    column_block: int
    lies: bool
    has_addend: bool
    addend_batch: int
    addend_row: int
    addend_column: int
    adds: bool
    stores_bfloats: bool
    activation: Activation = Activation.NONE


BFLOAT_MATMUL = Kernel(
    "bfloat_matmul",
    {
        "product": "activation of alpha * left @ right + beta * addend, [batch][rows][columns], floats or bfloats",
        "left": "bfloats [batch][rows][inner]",
        "right": "as `bfloat_pack` packs it",
        "addend?": "floats that broadcast to the product, where has_addend",
    },
    BfloatMatmulInts,
    MatmulScalars,
    items="batch * blocks of rows * blocks of columns",
    scratch="rows that do not lie as they are read: row_block * (pairs + LAID_PAD) pairs",
)

LAID_PAD = 24
"""Pairs behind a row that was laid, so that rows do not fall into one set of a cache."""


class BfloatDotsInts(NamedTuple):
    """Integers of ``bfloat_dots``; rows of the left operand and columns of the right lie dense.

    Attributes:
        rows: Of the product.
        columns: Of the product.
        inner: Summands.
        left_batch: Stride of the left operand from one matrix to the next.
        left_row: From row to row.
        right_batch: Stride of the right operand from one matrix to the next.
        right_column: From column to column.
        column_block: Columns of an item.
        has_addend: Whether there is one.
        addend_batch: Stride of the addend from one matrix to the next.
        addend_row: From row to row.
        addend_column: From column to column.
        adds: As in `BfloatMatmulInts`.
        stores_bfloats: Likewise.
        activation: Likewise.
    """

    rows: int
    columns: int
    inner: int
    left_batch: int
    left_row: int
    right_batch: int
    right_column: int
    column_block: int
    has_addend: bool
    addend_batch: int
    addend_row: int
    addend_column: int
    adds: bool
    stores_bfloats: bool
    activation: Activation = Activation.NONE


BFLOAT_DOTS = Kernel(
    "bfloat_dots",
    {
        "product": "as of `bfloat_matmul`", "left": "bfloats [batch][rows][inner]",
        "right": "bfloats [batch][inner][columns]", "addend?": "as of `bfloat_matmul`",
    },
    BfloatDotsInts,
    MatmulScalars,
    items="batch * blocks of columns",
)
