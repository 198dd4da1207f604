"""Kernels of matrix products.

One of the strides of a matrix from row to row and from column to column is 1. Strides are in elements.
"""

from enum import IntEnum
from typing import NamedTuple

from .conv_blocked import Activation
from .kernel import Kernel, Nothing

SMALL_ELEMENTS = 16


class Packing(IntEnum):
    """Where the rows of the left operand come from."""

    AS_IT_LIES = 0
    AHEAD = 1  # by `matmul_pack_rows`: the strides are then rows * inner, inner and 1
    IN_ITEM = 2  # each item packs the rows that it reads


class Storing(IntEnum):
    """What becomes of the product."""

    OVER = 0
    TRANSPOSED = 1  # alpha and beta are then 1, the addend has one value for each row, and the left is not packed
    ONTO = 2  # what is there, block by block; alpha is then 1, and there is no addend
    ON_FROM = 3  # likewise, but with sums that begin with what is there


class MatmulPackInts(NamedTuple):
    """Integers of ``matmul_pack``.

    Attributes:
        inner: Rows of the right operand.
        columns: Its columns.
        batch_stride: From one matrix of it to the next.
        row_stride: From row to row.
        column_stride: From column to column.
        block: Rows that an item packs.
    """

    inner: int
    columns: int
    batch_stride: int
    row_stride: int
    column_stride: int
    block: int


MATMUL_PACK = Kernel(
    "matmul_pack",
    {"packed": "[batch][panels][inner][PANEL]", "right": "what is packed"},
    MatmulPackInts,
    Nothing,
    items="batch * panels * blocks of rows",
)


class MatmulPackRowsInts(NamedTuple):
    """Integers of ``matmul_pack_rows``.

    Attributes:
        rows: Of the left operand.
        inner: Its columns.
        batch_stride: From one matrix of it to the next.
        row_stride: From row to row.
        column_stride: From column to column.
        row_block: Rows of a block: those of an item of the product.
        block: Columns that an item packs.
    """

    rows: int
    inner: int
    batch_stride: int
    row_stride: int
    column_stride: int
    row_block: int
    block: int


MATMUL_PACK_ROWS = Kernel(
    "matmul_pack_rows",
    {"packed": "[block of rows][tile][inner][rows of the tile], as `matmul` reads it", "left": "what is packed"},
    MatmulPackRowsInts,
    Nothing,
    items="batch * blocks of rows * blocks of columns",
)


class MatmulScalars(NamedTuple):
    """Factors of ``matmul`` and ``matmul_dots``.

    Attributes:
        alpha: Of the product.
        beta: Of the addend; 0 ignores it, whatever it holds.
    """

    alpha: float
    beta: float


class MatmulInts(NamedTuple):
    """Integers of ``matmul``.

    Attributes:
        rows: Of the product.
        columns: Of the product.
        inner: Summands.
        left_batch: Stride of the left operand from one matrix to the next.
        left_row: From row to row.
        left_column: From column to column.
        right_batch: Stride of the right operand from one matrix to the next.
        right_panel: From 32 columns to the next 32.
        right_row: From row to row.
        row_block: Rows of an item.
        column_block: Columns of an item, a multiple of 32.
        sum_block: Summands of a block: of some runs, where it holds more than one.
        packing: Where the rows of the left operand come from.
        has_addend: Whether there is one.
        addend_batch: Stride of the addend from one matrix to the next.
        addend_row: From row to row.
        addend_column: From column to column.
        storing: What becomes of the product.
        right_column: Stride of the right operand from column to column where each item packs the panels that it reads,
            else 0.
        run: Summands of a run of a step where several make one call, with each of which a block begins; else inner.
        activation: Of the product, which is then stored over what is there; there is no factor, and no addend but
            a row.
    """

    rows: int
    columns: int
    inner: int
    left_batch: int
    left_row: int
    left_column: int
    right_batch: int
    right_panel: int
    right_row: int
    row_block: int
    column_block: int
    sum_block: int
    packing: Packing
    has_addend: bool
    addend_batch: int
    addend_row: int
    addend_column: int
    storing: Storing
    right_column: int
    run: int
    activation: Activation = Activation.NONE


MATMUL = Kernel(
    "matmul",
    {
        "product": "activation of alpha * left @ right + beta * addend, [batch][rows][columns], or "
        "[batch][columns][rows]",
        "left": "[batch][rows][inner]",
        "right": "[batch][inner][columns], by its strides or packed by `matmul_pack`",
        "addend?": "what broadcasts to the product, where has_addend",
    },
    MatmulInts,
    MatmulScalars,
    items="batch * blocks of rows * blocks of columns",
    scratch="a block of rows and columns of floats where the product is stored transposed; where items pack, PANEL * "
    "sum_block floats, and behind them row_block * sum_block",
)


class MatmulDotsInts(NamedTuple):
    """Integers of ``matmul_dots``; rows of the left operand and columns of the right lie dense.

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
        adds: Whether to add onto what the product's memory holds.
        has_halves: Whether the right operand is half.
        activation: As in `MatmulInts`.
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
    has_halves: bool = False
    activation: Activation = Activation.NONE


MATMUL_DOTS = Kernel(
    "matmul_dots",
    {
        "product": "activation of alpha * left @ right + beta * addend, [batch][rows][columns]",
        "left": "[batch][rows][inner]", "right": "[batch][inner][columns], floats or halves",
        "addend?": "where has_addend",
    },
    MatmulDotsInts,
    MatmulScalars,
    items="batch * blocks of columns",
)


class MatmulSmallInts(NamedTuple):
    """Integers of ``matmul_small``; strides are any.

    Attributes:
        rows: Of a product.
        columns: Of a product.
        inner: Summands.
        left_batch: Stride of the left operand from one matrix to the next.
        left_row: From row to row.
        left_column: From column to column.
        right_batch: Stride of the right operand from one matrix to the next.
        right_row: From row to row.
        right_column: From column to column.
    """

    rows: int
    columns: int
    inner: int
    left_batch: int
    left_row: int
    left_column: int
    right_batch: int
    right_row: int
    right_column: int


MATMUL_SMALL = Kernel(
    "matmul_small",
    {
        "product": "left @ right, [batch][rows][columns]; none of the three has more than SMALL_ELEMENTS a matrix",
        "left": "[batch][rows][inner]", "right": "[batch][inner][columns]",
    },
    MatmulSmallInts,
    Nothing,
    items="batch",
)
