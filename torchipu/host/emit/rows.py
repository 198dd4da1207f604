"""Access to rows by index, for the look-up families: taking rows, and bucketing an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torchipu._kernels.table.embedding import BUCKET, TAKE_ROWS, BucketInts, TakeRowsInts
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor, collapse
from torchipu.optable.planner import HostPlanner
from torchipu.optable.samples import Samples

INDEX_BYTES = {DType.INT: 4, DType.LONG: 8}
GRAIN_BYTES = 65536
LEAST_PART = 8  # elements of a row that are copied by themselves: shorter ones are better copied side by side later
ROW_SHARE = 16384  # elements of one thread's share of row-wise kernels


def arithmetic_type(dtype: DType) -> DType:
    """Return the type in which sums and products of a type are formed: float, or 64-bit words."""
    return DType.FLOAT if dtype.is_floating else DType.LONG


@dataclass(frozen=True, slots=True)
class RowsApart:
    """How rows lie in a result.

    Attributes:
        step: Elements from a row to the next.
        parts: Of a row, each of which is one stretch.
        part_step: Elements from a part to the next.
    """

    step: int
    parts: int
    part_step: int


def take_rows(
    plan: HostPlanner, out: HostTensor, table: HostTensor, index: HostTensor, *, outer: int, rows: int, row_bytes: int,
    wrap: bool, count: int | None = None,
) -> None:
    """Copy the rows that an index names.

    Args:
        plan: Receives the step.
        out: ``[outer, count, row]``, whose rows may lie apart as `rows_of` says.
        table: ``[outer, rows, row]``.
        index: ``[count]``, the same for every outer index, or ``[outer, count]``.
        outer: Repetitions.
        rows: Rows of the table.
        row_bytes: Bytes of a row.
        wrap: Whether negative indices count from the end.
        count: Indices for each outer index; None when the index is the same for all.
    """
    count = index.num_elements if count is None else count
    element_bytes = out.dtype.host_bytes
    apart = rows_of(out, row_bytes // element_bytes)
    assert apart is not None, (out.shape, out.strides, row_bytes)
    ints = TakeRowsInts(
        rows=rows, taken=count, row_bytes=row_bytes, step_bytes=apart.step * element_bytes,
        parts=apart.parts, part_step_bytes=apart.part_step * element_bytes, index_bytes=INDEX_BYTES[index.dtype],
        wraps=wrap, period=index.num_elements,
    )
    plan.step(TAKE_ROWS, [out], [table, index], ints=ints,
              items=outer * count if row_bytes else 0, grain=max(1, GRAIN_BYTES // max(1, row_bytes)),
              samples=Samples.of(outer * count, out, None, index if outer == 1 else None).picking(1, row_bytes))


def rows_of(held: HostTensor, row: int) -> RowsApart | None:
    """Return how rows of so many elements lie in memory of a result; None where they do not lie in equal steps."""
    if held.is_contiguous:
        return RowsApart(row, 1, row)
    dims, behind = len(held.shape), 1
    while dims > 0 and behind < row:
        dims -= 1
        behind *= held.shape[dims]
    if behind != row:
        return None
    sizes, (steps,) = collapse(held.shape[:dims], held.strides[:dims])
    inside, (inner,) = collapse(held.shape[dims:], held.strides[dims:])
    if len(sizes) > 1 or len(inside) > 2 or (inside[-1] > 1 and inner[-1] != 1):
        return None
    parts = 1 if len(inside) == 1 else inside[0]
    return RowsApart(steps[0] if sizes[0] > 1 else row, parts, row if parts == 1 else inner[0])


def takes_apart(op: Op, held: HostTensor, row: int) -> bool:
    """Whether `take_rows` stores rows of so many elements, results of an op, at a place of a whole."""
    apart = rows_of(held, row) if row and op.outputs[0].num_elements else None
    return apart is not None and (apart.parts == 1 or row // apart.parts >= LEAST_PART)


def bucket(
    plan: HostPlanner, index: HostTensor, rows: int, *, wrap: bool, skipped: int = -1,
) -> tuple[HostTensor, HostTensor]:
    """Order the positions of an index by the row that they name; returns where each row's begin, and the order."""
    offsets, order = plan.scratch((rows + 1,), DType.LONG), plan.scratch((max(1, index.num_elements),), DType.LONG)
    plan.step(BUCKET, [offsets, order], [index],
              ints=BucketInts(
                  rows=rows, length=index.num_elements, index_bytes=INDEX_BYTES[index.dtype], wraps=wrap,
                  skipped=skipped,
              ))
    return offsets, order


def row_grain(inner: int) -> int:
    """Return how many rows make one thread's share."""
    return max(1, ROW_SHARE // max(1, inner))


def outer_of(shape: Sequence[int], dim: int) -> tuple[int, int, int]:
    """Return the sizes before, along and after a dimension; a 0-d tensor has one element along it."""
    if not shape:
        return 1, 1, 1
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])
