"""Kernel of products of integer matrices."""

from typing import NamedTuple

from .kernel import Kernel, Nothing


class IntegerMatmulInts(NamedTuple):
    """Integers of ``integer_matmul``; elements are of 4 or 8 bytes, and sums wrap.

    Attributes:
        element_bytes: Size of an element.
        rows: Of the product.
        columns: Of the product.
        inner: Summands.
        left: Strides of the left operand by matrix, row and column.
        right: Those of the right one, whose rows are dense unless ``of_columns``.
        of_columns: Whether rows of the left operand and columns of the right one are dense: elements are summed by
            themselves.
        has_addend: Whether there is one.
        addend: Its strides.
        alpha: Factor of the product.
        beta: Factor of the addend.
    """

    element_bytes: int
    rows: int
    columns: int
    inner: int
    left: tuple[int, int, int]
    right: tuple[int, int, int]
    of_columns: bool
    has_addend: bool
    addend: tuple[int, int, int]
    alpha: int
    beta: int


INTEGER_MATMUL = Kernel(
    "integer_matmul",
    {
        "product": "[batch][rows][columns]", "left": "[batch][rows][inner]",
        "right": "[batch][inner][columns]", "addend?": "where has_addend",
    },
    IntegerMatmulInts, Nothing, items="batch * rows",
)
