"""Products of the matrices of a batch that have a single row, a single column, or a single summand each."""

from typing import NamedTuple

from .kernel import Kernel, Nothing


class LineProductsInts(NamedTuple):
    """Integers of ``line_products``; strides are in elements, and any but where it says so.

    Attributes:
        rows: Of a product; more than one only where there is a single summand.
        columns: Of a product.
        inner: Summands.
        sizes: Of the last two of the three dimensions of the batch.
        line: Strides of the line along the batch, and from element to element.
        matrix: Strides of the matrix along the batch, from summand to summand and from column to column; one of the
            last two is 1 where there are several summands.
    """

    rows: int
    columns: int
    inner: int
    sizes: tuple[int, int]
    line: tuple[int, int, int, int]
    matrix: tuple[int, int, int, int, int]


LINE_PRODUCTS = Kernel(
    "line_products",
    {
        "products": "[batch][rows][columns]",
        "line": "what the summands are multiplied by, [batch][inner]; or with a single one [batch][rows]",
        "matrix": "[batch][inner][columns]",
    },
    LineProductsInts,
    Nothing,
    items="batch",
    scratch="max(inner, columns) floats: a line of which elements lie apart is laid together there",
)
