"""Host steps of matrix products of bfloat16, on processors that multiply pairs of them.

torch rounds what it computes in bfloat16 after each op; here values between ops are floats, and rounded where a product
reads them. Sums are floats, in the blocks of any other product, and a result is rounded where it is stored.
"""

from __future__ import annotations

from torchipu._kernels.table.bfloat_matmul import (
    BFLOAT_DOTS,
    BFLOAT_MATMUL,
    BFLOAT_PACK,
    LAID_PAD,
    BfloatDotsInts,
    BfloatMatmulInts,
    BfloatPackInts,
)
from torchipu._kernels.table.conv_blocked import Activation
from torchipu._kernels.table.gemm import PANEL
from torchipu._kernels.table.matmul import MatmulScalars
from torchipu.host.emit.items import LEAST_CHUNK_MACS, grain_for
from torchipu.host.emit.packing import APART_IN_ONE_SET, rows_apart
from torchipu.host.emit.products import broadcast_strides, cut, samples_of, transposed
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor, broadcast
from torchipu.optable.marks import BFLOATS
from torchipu.optable.planner import HostPlanner

PACKED_PAIRS = 128  # that an item packs
MOST_DOT_ROWS, LEAST_DOT_COLUMNS, DOT_BLOCK = 4, 8, 16
MOST_DOT_SUMMANDS = 16384
LAID_ELEMENTS, LEAST_ROWS, MOST_ROWS = 128 * 1024, 28, 224
"""Elements of the left operand that stay in the second cache beside panels of the right one, and rows of an item."""
COLUMNS = 32 * PANEL


def multiplies_bfloats(op: Op, plan: HostPlanner) -> bool:
    """Whether a product is one of bfloats, and computed as such."""
    return plan.multiplies_bfloats and bool(op.attrs.get(BFLOATS))


def factor(plan: HostPlanner, tensor: Tensor) -> HostTensor:
    """Return an operand as bfloats, row-major or column-major."""
    held = plan.value(tensor, DType.BFLOAT, contiguous=False)
    return held if rows_apart(held) else plan.value(tensor, DType.BFLOAT)


def emit_bfloat_product(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None = None,
    alpha: float = 1.0, beta: float = 1.0, *, adds: bool = False, activation: Activation = Activation.NONE,
) -> None:
    """Emit ``out = activation(alpha * left @ right + beta * addend)`` of bfloats.

    Args:
        plan: The planner.
        out: `[M, N]` or `[B, M, N]`, row-major, floats or bfloats.
        left: `[M, K]` or `[B, M, K]`, bfloats, one of the last two strides 1.
        right: `[K, N]` or `[B, K, N]`, likewise.
        addend: Floats that broadcast to ``out``.
        alpha: Factor of the product.
        beta: Factor of the addend.
        adds: Add to what ``out`` holds, which is float then.
        activation: Of the whole.
    """
    batch = out.shape[0] if len(out.shape) == 3 else 1
    rows, columns, inner = out.shape[-2], out.shape[-1], left.shape[-1]
    if 0 in (batch, rows, columns):
        return
    if inner == 0:  # an empty sum is zero
        left, right, inner = _zeros(plan, (*left.shape[:-1], 1)), _zeros(plan, (*right.shape[:-2], 1, columns)), 1
    left_strides, right_strides = rows_apart(left), rows_apart(right)
    assert left_strides is not None
    assert right_strides is not None
    left_batch, right_batch = (held.strides[0] if len(held.shape) == 3 else 0 for held in (left, right))
    addend_batch, addend_row, addend_column = (0, 0, 0) if addend is None else broadcast_strides(addend, out)
    is_column = columns == 1 and rows >= LEAST_DOT_COLUMNS and inner <= MOST_DOT_SUMMANDS
    if is_column and left_strides[1] == 1 and right_strides[0] == 1:
        # A column, as of a layer with one feature: the transposed product has the same elements in the same order.
        turned = None if addend is None else transposed(broadcast(addend, out.shape))
        emit_bfloat_product(plan, transposed(out), transposed(right), transposed(left), turned, alpha, beta, adds=adds,
                            activation=activation)
        return
    is_few = rows <= MOST_DOT_ROWS and columns >= LEAST_DOT_COLUMNS and inner <= MOST_DOT_SUMMANDS
    if is_few and left_strides[1] == 1 and right_strides[0] == 1 and right_strides[1] > 1:
        items = batch * -(-columns // DOT_BLOCK)
        plan.step(
            BFLOAT_DOTS, [out], [left, right, *([] if addend is None else [addend])],
            ints=BfloatDotsInts(
                rows=rows, columns=columns, inner=inner, left_batch=left_batch, left_row=left_strides[0],
                right_batch=right_batch, right_column=right_strides[1], column_block=DOT_BLOCK,
                has_addend=addend is not None, addend_batch=addend_batch, addend_row=addend_row,
                addend_column=addend_column, adds=adds, stores_bfloats=out.dtype is DType.BFLOAT,
                activation=activation,
            ),
            scalars=MatmulScalars(alpha, beta), items=items,
            grain=grain_for(items, batch * columns * inner * 4, LEAST_CHUNK_MACS), reads_outputs=adds, adds_up=adds,
        )
        return
    pairs = -(-inner // 2)
    lies = (left_strides[1] == 1 and inner % 2 == 0 and left_strides[0] % 2 == 0
            and (left_strides[0] % APART_IN_ONE_SET != 0 or columns <= PANEL))
    most_rows = min(MOST_ROWS, max(LEAST_ROWS, LAID_ELEMENTS // inner))
    row_block, column_block = cut(batch, rows, columns, most_rows, COLUMNS)
    items = batch * -(-rows // row_block) * -(-columns // column_block)
    packed = packed_pairs(plan, right)
    plan.step(
        BFLOAT_MATMUL, [out], [left, packed, *([] if addend is None else [addend])],
        ints=BfloatMatmulInts(
            rows=rows, columns=columns, inner=inner, left_batch=left_batch, left_row=left_strides[0],
            left_column=left_strides[1], right_batch=packed.strides[0] if packed.shape[0] > 1 else 0,
            row_block=row_block, column_block=column_block, lies=lies, has_addend=addend is not None,
            addend_batch=addend_batch, addend_row=addend_row, addend_column=addend_column, adds=adds,
            stores_bfloats=out.dtype is DType.BFLOAT, activation=activation,
        ),
        scalars=MatmulScalars(alpha, beta), items=items,
        grain=grain_for(items, batch * rows * columns * pairs, LEAST_CHUNK_MACS),
        scratch_bytes=0 if lies else 4 * row_block * (pairs + LAID_PAD), reads_outputs=adds, adds_up=adds,
        samples=samples_of(out, left, packed, addend, row_block),
    )


def packed_pairs(plan: HostPlanner, right: HostTensor) -> HostTensor:
    """Emit the packing of right operands and return their panels.

    Args:
        plan: Receives the step.
        right: `[K, N]` or `[B, K, N]`, bfloats, one of the last two strides 1.

    Returns:
        Pairs, `[B, ceil(N / 32), ceil(K / 2), 32]`, zero beyond row K and column N; B is 1 where all of a batch share
        one operand.
    """
    inner, columns = right.shape[-2:]
    strides = rows_apart(right)
    assert strides is not None
    right_batch = right.strides[0] if len(right.shape) == 3 else 0
    batch, pairs, panels = right.shape[0] if right_batch else 1, -(-inner // 2), -(-columns // PANEL)
    packed = plan.scratch((batch, panels, pairs, PANEL), DType.INT)
    items = batch * panels * -(-pairs // PACKED_PAIRS)
    plan.step(
        BFLOAT_PACK, [packed], [right],
        ints=BfloatPackInts(
            inner=inner, columns=columns, batch_stride=right_batch, row_stride=strides[0], column_stride=strides[1],
            block=PACKED_PAIRS,
        ),
        items=items, grain=grain_for(items, batch * panels * pairs * PANEL, 16384),
    )
    return packed


def _zeros(plan: HostPlanner, shape: tuple[int, ...]) -> HostTensor:
    """Return [..., M, N] of zeros, of which memory holds one row."""
    row = plan.constant([0] * ((shape[-1] + 1) // 2), DType.INT)
    return HostTensor(row.buffer, 0, shape, (0,) * (len(shape) - 1) + (1,), DType.BFLOAT)
