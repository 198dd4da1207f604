"""Kernels of softmax and log-softmax over one dimension of row-major ``[outer, extent, inner]``.

A row with a NaN or +inf, or of -inf alone, is NaN throughout, as in eager mode.
"""

from enum import IntEnum
from typing import NamedTuple

from .convert import Stored
from .kernel import Kernel, Nothing

SOFTMAX_BLOCK = 128  # neighbouring positions of inner that an item takes


class SoftmaxMode(IntEnum):
    """What becomes of a row."""

    SOFTMAX = 0
    LOG = 1
    SAFE = 2  # softmax, with 0 for a row of -inf


class SoftmaxRowsInts(NamedTuple):
    """Integers of ``softmax_rows`` and ``softmax_rows_grad``.

    Attributes:
        extent: Of a row.
        mode: What becomes of it; the gradient of ``SAFE`` is that of ``SOFTMAX``.
        stored: As what lies in memory what is read; what is written is of floats.
    """

    extent: int
    mode: SoftmaxMode
    stored: Stored


class SoftmaxColumnsInts(NamedTuple):
    """Integers of ``softmax_columns`` and ``softmax_columns_grad``.

    Attributes:
        extent: Of a column.
        inner: Columns beside each other.
        mode: What becomes of them; the gradient of ``SAFE`` is that of ``SOFTMAX``.
    """

    extent: int
    inner: int
    mode: SoftmaxMode


SOFTMAX_ROWS = Kernel(
    "softmax_rows", {"result": "[rows, extent]", "source": "[rows, extent]"}, SoftmaxRowsInts, Nothing, items="rows",
    scratch="of halves the floats of a row",
)
SOFTMAX_ROWS_GRAD = Kernel(
    "softmax_rows_grad",
    {"source_grad": "[rows, extent]", "result_grad": "[rows, extent]", "result": "[rows, extent]"},
    SoftmaxRowsInts,
    Nothing,
    items="rows",
    scratch="of halves the floats of two rows",
)
SOFTMAX_COLUMNS = Kernel(
    "softmax_columns",
    {"result": "[outer, extent, inner]", "source": "[outer, extent, inner]"},
    SoftmaxColumnsInts,
    Nothing,
    items="outer * blocks of SOFTMAX_BLOCK positions of inner",
)
SOFTMAX_COLUMNS_GRAD = Kernel(
    "softmax_columns_grad",
    {
        "source_grad": "[outer, extent, inner]", "result_grad": "[outer, extent, inner]",
        "result": "[outer, extent, inner]",
    },
    SoftmaxColumnsInts,
    Nothing,
    items="outer * blocks of SOFTMAX_BLOCK positions of inner",
)
