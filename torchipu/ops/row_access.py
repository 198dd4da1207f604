"""Access to rows by index, for the look-up families: device lowerings, taking rows, and bucketing an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from torchipu._kernels import embedding as kernels
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.lowering import FILL, MULTI_SLICE, MULTI_UPDATE_ADD, copy_set, elementwise_set, gather_set
from torchipu.ops.spec import HostPlanner, HostTensor, Lowering, Vertices
from torchipu.target import Target

INDEX_BYTES = {DType.INT: 4, DType.LONG: 8}
GRAIN_BYTES = 65536
Lowered = Callable[[Op], int]
ROW_SHARE = 16384  # elements of one thread's share of row-wise kernels


def needed(op: Op, name: str) -> Tensor:
    """Return an operand that the schema demands."""
    tensor = op.operand(name)
    assert tensor is not None, f"{op.target} without {name}"
    return tensor


def dim_of(op: Op, rank: int) -> int:
    """Return the attribute ``dim`` as a non-negative number; 0 for 0-d tensors."""
    dim = op.attrs["dim"]
    assert isinstance(dim, int)
    return dim % max(1, rank)


def arithmetic_type(dtype: DType) -> DType:
    """Return the type in which sums and products of a type are formed: float, or 64-bit words."""
    return DType.FLOAT if dtype.is_floating else DType.LONG


# --------------------------------------------------------------------------- device side
def lower_take(row_of: Lowered) -> Lowering:
    """Return the lowering of a look-up.

    Args:
        row_of: Tells how many elements one index selects.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result, row = op.outputs[0], max(1, row_of(op))
        if result.num_elements == 0:
            return ()
        rows = op.inputs[0].num_elements // row
        return (gather_set(target, MULTI_SLICE, result.num_elements // row, row, result.dtype, table_rows=rows),)

    return lower


def lower_update(row_of: Lowered, index_of: Lowered) -> Lowering:
    """Return the lowering of a write by index: the old value is copied, or zeros are filled in, then rows are written.

    Args:
        row_of: Tells how many elements one index selects.
        index_of: Tells how many indices there are.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result, row = op.outputs[0], max(1, row_of(op))
        if result.num_elements == 0:
            return ()
        if op.operand("self") is None:
            first = elementwise_set(target, FILL, result.num_elements, result.dtype)
        else:
            first = copy_set(target, result.num_elements, result.dtype, moved=False)
        rows, looked_up = max(1, result.num_elements // row), max(1, index_of(op))
        return first, gather_set(target, MULTI_UPDATE_ADD, looked_up, row, result.dtype, table_rows=rows)

    return lower


# --------------------------------------------------------------------------- host side
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
