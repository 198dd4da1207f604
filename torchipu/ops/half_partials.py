"""Host steps of products with half partials: sums are written back as halves every 16 channels."""

from __future__ import annotations

from torchipu._kernels.half_partials import HALF_PRODUCT
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.chain import broadcast
from torchipu.ops.spec import HostPlanner, HostTensor, Rounding

HALF_GROUP = 16  # channels that the matrix unit sums before it writes back, of halves; ipu_hardware.md 5


def partial_rounding(op: Op, result: Tensor, plan: HostPlanner) -> Rounding | None:
    """Return how the partials of a result are rounded; None where they are float."""
    is_half = op.attrs.get("partials") == "half" and result.dtype is DType.HALF
    return plan.rounding(op, result) if is_half else None


def emit_half_product(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, rounding: Rounding, *, taps: int = 1,
    addend: HostTensor | None = None, alpha: float = 1.0, beta: float = 1.0, group: int = HALF_GROUP,
) -> None:
    """Emit ``out = alpha * left @ right + beta * addend``.

    Args:
        plan: The planner.
        out: [M, N] or [B, M, N], float, row-major.
        left: [M, K] or [B, M, K], likewise.
        right: [K, N] or [B, K, N], likewise.
        rounding: Of the partials.
        taps: Equal parts of K that are summed one after another, each in groups of 16 channels.
        addend: Anything that broadcasts to ``out``.
        alpha: Factor of the product.
        beta: Factor of the addend.
        group: Channels that are summed as floats.
    """
    batch = out.shape[0] if len(out.shape) == 3 else 1
    rows, columns = out.shape[-2:]
    if not out.num_elements:
        return
    strides = (0, 0, 0) if addend is None else broadcast(addend, out.shape).strides
    strides = (0,) * (3 - len(strides)) + strides
    read = [left, right, *([] if addend is None else [addend]), *([rounding.random] if rounding.random else [])]
    plan.step(
        HALF_PRODUCT, [out], read,
        ints=(
            batch, rows, columns, taps, left.shape[-1] // taps, int(addend is not None), *strides, rounding.overflow,
            int(rounding.random is not None), group,
        ),
        scalars=(alpha, beta), items=batch * rows,
    )
