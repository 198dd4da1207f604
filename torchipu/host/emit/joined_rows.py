"""Rows of a source that are joined into those of a base by index: summed, put there, or reduced otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu._kernels.table import embedding as row_kernels
from torchipu._kernels.table import indexing as kernels
from torchipu._kernels.table.embedding import PutRowsInts, SumRowsInts, SumRowsScalars
from torchipu._kernels.table.indexing import Join, ReduceIndexedInts
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.rows import row_grain, rows_of
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner


def row_major(plan: HostPlanner, held: HostTensor) -> HostTensor:
    """Return a row-major copy, or the tensor itself where it is row-major."""
    if held.is_contiguous:
        return held
    fresh = plan.scratch(held.shape, held.dtype)
    emit_copy(plan, fresh, held)
    return fresh


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows that are joined into others.

    Attributes:
        held: Where they lie.
        row: Elements from row to row; 0 for one row for all.
        column: Within a row; 0 for one number.
        parts: Of a row, each of which is one stretch.
        part: Elements from one of them to the next.
    """

    held: HostTensor
    row: int
    column: int = 1
    parts: int = 1
    part: int = 0


def as_rows(plan: HostPlanner, held: HostTensor, inner: int, *, takes_parts: bool) -> SourceRows:
    """Return rows of so many elements where they lie, if in equal steps, or a row-major copy of them."""
    apart = rows_of(held, inner) if takes_parts and inner > 1 else None
    if apart is None:
        return SourceRows(row_major(plan, held), inner)
    return SourceRows(held, apart.step, parts=apart.parts, part=apart.part_step)


def sums_rows(how: Join, dtype: DType) -> bool:
    """Whether rows are summed by the kernel that takes those of a source in parts."""
    return how == Join.ADD and dtype is DType.FLOAT


def join_rows(
    plan: HostPlanner, out: HostTensor, base: HostTensor, source: SourceRows, buckets: tuple[HostTensor, HostTensor],
    *, sizes: tuple[int, int, int], count: int, how: Join, with_base: bool = True, alpha: float = 1.0,
) -> None:
    """Join the rows of a source into those of a base; ``sizes`` are the outer, the rows and the inner."""
    outer, rows, inner = sizes
    if how == Join.PUT:
        plan.step(row_kernels.PUT_ROWS, [out], [base, source.held, *buckets],
                  ints=PutRowsInts(
                      rows=rows, source_rows=count, inner=inner, element_bytes=base.dtype.host_bytes,
                      source_row=source.row, source_column=source.column,
                  ),
                  items=outer * rows,
                  grain=row_grain(inner))
    elif sums_rows(how, base.dtype) and with_base:
        # Without a base this kernel gives zero to rows that no index names.
        plan.step(row_kernels.SUM_ROWS, [out], [base, source.held, *buckets],
                  ints=SumRowsInts(
                      rows=rows, source_rows=count, inner=inner, has_base=True, source_row=source.row,
                      source_column=source.column, parts=source.parts, source_part=source.part,
                  ),
                  scalars=SumRowsScalars(float(alpha)), items=outer * rows,
                  grain=row_grain(inner))
    else:
        plan.step(kernels.REDUCE_INDEXED, [out], [base, source.held, *buckets],
                  ints=ReduceIndexedInts(
                      rows=rows, source_rows=count, inner=inner, with_base=with_base, source_row=source.row,
                      source_column=source.column, how=how, element_bytes=base.dtype.host_bytes,
                      is_float=base.dtype is DType.FLOAT,
                  ),
                  items=outer * rows,
                  grain=row_grain(inner))
