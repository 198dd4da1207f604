"""Access to rows by index, for the look-up families: taking rows, and bucketing an index."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchipu._kernels.table import embedding as kernels
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

INDEX_BYTES = {DType.INT: 4, DType.LONG: 8}
GRAIN_BYTES = 65536
ROW_SHARE = 16384  # elements of one thread's share of row-wise kernels


def arithmetic_type(dtype: DType) -> DType:
    """Return the type in which sums and products of a type are formed: float, or 64-bit words."""
    return DType.FLOAT if dtype.is_floating else DType.LONG


def take_rows(
    plan: HostPlanner, out: HostTensor, table: HostTensor, index: HostTensor, *, outer: int, rows: int, row_bytes: int,
    wrap: bool, count: int | None = None,
) -> None:
    """Copy the rows that an index names.

    Args:
        plan: Receives the step.
        out: ``[outer, count, row]``.
        table: ``[outer, rows, row]``.
        index: ``[count]``, the same for every outer index, or ``[outer, count]``.
        outer: Repetitions.
        rows: Rows of the table.
        row_bytes: Bytes of a row.
        wrap: Whether negative indices count from the end.
        count: Indices for each outer index; None when the index is the same for all.
    """
    count = index.num_elements if count is None else count
    ints = (rows, count, row_bytes, INDEX_BYTES[index.dtype], int(wrap), index.num_elements)
    plan.step(kernels.TAKE_ROWS, [out], [table, index], ints=ints,
              items=outer * count if row_bytes else 0, grain=max(1, GRAIN_BYTES // max(1, row_bytes)))


def bucket(
    plan: HostPlanner, index: HostTensor, rows: int, *, wrap: bool, skipped: int = -1,
) -> tuple[HostTensor, HostTensor]:
    """Order the positions of an index by the row that they name; returns where each row's begin, and the order."""
    offsets, order = plan.scratch((rows + 1,), DType.LONG), plan.scratch((max(1, index.num_elements),), DType.LONG)
    plan.step(kernels.BUCKET, [offsets, order], [index],
              ints=(rows, index.num_elements, INDEX_BYTES[index.dtype], int(wrap), skipped))
    return offsets, order


def row_grain(inner: int) -> int:
    """Return how many rows make one thread's share."""
    return max(1, ROW_SHARE // max(1, inner))


def outer_of(shape: Sequence[int], dim: int) -> tuple[int, int, int]:
    """Return the sizes before, along and after a dimension; a 0-d tensor has one element along it."""
    if not shape:
        return 1, 1, 1
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])
