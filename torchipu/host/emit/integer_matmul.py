"""Products of integer matrices: the matrix unit takes none, so workers multiply and add, one element at a time."""

from __future__ import annotations

from dataclasses import replace

from torchipu._kernels.table.integer_matmul import INTEGER_MATMUL, IntegerMatmulInts
from torchipu.host.emit.copy import emit_copy
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

SHARE_MACS = 60_000  # of one thread's share
ROWS_BY_COLUMNS = 4  # of a product with a matrix whose columns lie dense: from more rows on it is transposed


def integer_type(result: DType) -> DType:
    """Return the type in which integers are multiplied and added: sums of shorter ones wrap as their last bits do."""
    return DType.LONG if result is DType.LONG else DType.INT


def emit_integer_product(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None, alpha: int,
    beta: int,
) -> None:
    """Emit ``out = alpha * left @ right + beta * addend`` of tensors of one type, LONG or INT.

    Args:
        plan: The planner.
        out: [M, N] or [B, M, N], row-major.
        left: [M, K] or [B, M, K], any strides.
        right: [K, N] or [B, K, N], any strides.
        addend: With the shape of ``out`` and 0 strides where it is broadcast.
        alpha: Factor of the product.
        beta: Factor of the addend.
    """
    if out.shape[-1] == 1 and left.strides[-1] != 1 and left.strides[-2] == 1:  # sums of dense columns
        out, left, right = _turned(out), _turned(right), _turned(left)
        addend = addend and _turned(addend)
    rows, columns, inner = out.shape[-2], out.shape[-1], left.shape[-1]
    of_columns = left.strides[-1] == 1 and right.strides[-2] == 1 and (
        columns == 1 or (right.strides[-1] != 1 and rows <= ROWS_BY_COLUMNS)
    )
    if not of_columns and columns > 1 and right.strides[-1] != 1:
        turned = plan.scratch(right.shape, right.dtype)
        emit_copy(plan, turned, right)
        right = turned
    strides = [_three(held) if held is not None else (0, 0, 0) for held in (left, right, addend)]
    plan.step(
        INTEGER_MATMUL, [out], [left, right] + ([addend] if addend is not None else []),
        ints=IntegerMatmulInts(
            element_bytes=out.dtype.host_bytes, rows=rows, columns=columns, inner=inner, left=strides[0],
            right=strides[1], of_columns=of_columns, has_addend=addend is not None, addend=strides[2], alpha=alpha,
            beta=beta,
        ),
        items=out.num_elements // columns if columns else 0, grain=max(1, SHARE_MACS // max(1, columns * inner)),
    )


def _turned(held: HostTensor) -> HostTensor:
    """Show each matrix transposed."""
    *batch, row, column = held.strides
    *batches, rows, columns = held.shape
    return replace(held, shape=(*batches, columns, rows), strides=(*batch, column, row))


def _three(held: HostTensor) -> tuple[int, int, int]:
    """Return the strides of batch, row and column; 0 for a batch that is absent."""
    row, column = held.strides[-2:]
    return (held.strides[0] if len(held.shape) == 3 else 0, row, column)
