"""Products of integer matrices: the matrix unit takes none, so workers multiply and add, one element at a time."""

from __future__ import annotations

from torchipu._kernels.table.grouped_matmul import INTEGER_MATMUL
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

SHARE_MACS = 30_000  # of one thread's share


def emit_integer_product(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None, alpha: int,
    beta: int,
) -> None:
    """Emit ``out = alpha * left @ right + beta * addend`` in int64.

    Args:
        plan: The planner.
        out: [M, N] or [B, M, N] LONG, row-major.
        left: [M, K] or [B, M, K] LONG, any strides.
        right: [K, N] or [B, K, N] LONG, any strides.
        addend: LONG, with the shape of ``out`` and 0 strides where it is broadcast.
        alpha: Factor of the product.
        beta: Factor of the addend.
    """
    rows, columns, inner = out.shape[-2], out.shape[-1], left.shape[-1]
    strides = [_three(held) if held is not None else (0, 0, 0) for held in (left, right, addend)]
    plan.step(
        INTEGER_MATMUL, [out], [left, right] + ([addend] if addend is not None else []),
        ints=(
            rows, columns, inner, *strides[0], *strides[1], int(addend is not None), *strides[2], alpha, beta,
        ),
        items=out.num_elements // columns if columns else 0, grain=max(1, SHARE_MACS // max(1, columns * inner)),
    )


def _three(held: HostTensor) -> tuple[int, int, int]:
    """Return the strides of batch, row and column; 0 for a batch that is absent."""
    row, column = held.strides[-2:]
    return (held.strides[0] if len(held.shape) == 3 else 0, row, column)
