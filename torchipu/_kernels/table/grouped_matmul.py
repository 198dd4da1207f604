"""Products of consecutive groups of rows with a matrix for each, whose sizes only a run knows."""

from typing import NamedTuple

from .kernel import Kernel, Nothing

GROUP_ROWS = 56
GROUP_COLUMNS = 128
"""Rows and columns of an item."""
GROUP_SUMMANDS = 384
"""That a tile adds up at a time."""


class GroupedMatmulInts(NamedTuple):
    """Integers of ``grouped_matmul``; one of the strides of the left operand is 1.

    Attributes:
        rows: Of the product.
        columns: Of the product.
        inner: Summands.
        left_row: Stride of the left operand from row to row.
        left_column: From column to column.
        right_group: Stride of the right operand from the matrix of a group to the next.
        right_panel: From 32 columns to the next 32.
        right_row: From row to row.
        groups: How many there are.
    """

    rows: int
    columns: int
    inner: int
    left_row: int
    left_column: int
    right_group: int
    right_panel: int
    right_row: int
    groups: int


GROUPED_MATMUL = Kernel(
    "grouped_matmul",
    {
        "product": "[rows][columns]; rows beyond the last group are 0", "left": "[rows][inner]",
        "right": "[groups][inner][columns], row-major or packed by `matmul_pack`",
        "ends": "LONG[groups], of the rows of each",
    },
    GroupedMatmulInts, Nothing, items="blocks of GROUP_ROWS rows * blocks of GROUP_COLUMNS columns",
)


class GroupedOuterInts(NamedTuple):
    """Integers of ``grouped_outer``; one of the strides of the left operand is 1.

    Attributes:
        rows: Of each product.
        columns: Of each product.
        inner: Summands of all groups.
        left_row: Stride of the left operand from row to row.
        left_column: From column to column.
        right_row: Stride of the right operand from row to row.
    """

    rows: int
    columns: int
    inner: int
    left_row: int
    left_column: int
    right_row: int


GROUPED_OUTER = Kernel(
    "grouped_outer",
    {
        "products": "[groups][rows][columns]", "left": "[rows][inner]", "right": "[inner][columns], row-major",
        "ends": "LONG[groups], of the summands of each",
    },
    GroupedOuterInts, Nothing, items="groups * blocks of GROUP_ROWS rows",
)
