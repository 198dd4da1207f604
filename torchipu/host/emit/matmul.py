"""Host steps of matrix products: how a product is cut into items, and where several make one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torchipu._kernels.table.conv_blocked import Activation
from torchipu._kernels.table.gemm import PANEL, SUM_BLOCK
from torchipu._kernels.table.matmul import (
    MATMUL,
    MATMUL_DOTS,
    MATMUL_SMALL,
    SMALL_ELEMENTS,
    MatmulDotsInts,
    MatmulInts,
    MatmulScalars,
    MatmulSmallInts,
    Packing,
    Storing,
)
from torchipu.host.emit.blocking import BLOCK, JOINED_BLOCK, PACKED_BYTES, blocking_of, pays_to_turn
from torchipu.host.emit.items import LEAST_CHUNK_MACS, grain_for
from torchipu.host.emit.packing import (
    FEW_ROWS,
    LEAST_PACKED_COLUMNS,
    packed_rows,
    right_operand,
    right_panels,
    rows_apart,
)
from torchipu.host.emit.products import broadcast_strides, cut, samples_of, transposed
from torchipu.ir.graph import Tensor
from torchipu.ir.sizes import flag_of, largest, of_numbers
from torchipu.ir.types import DType
from torchipu.optable.alternatives import EitherTensor, chosen, number_of, numbers_of, other_or
from torchipu.optable.blocks import Along, Blocks
from torchipu.optable.host_tensor import HostTensor, broadcast
from torchipu.optable.planner import HostPlanner, Joined, Joining
from torchipu.optable.samples import Samples

LEAST_SUMMANDS_FROM_ZERO = 32
MOST_DOT_ROWS, LEAST_DOT_COLUMNS, DOT_BLOCK = 16, 8, 16
MOST_DOT_ROWS_OF_PANELS = 4
"""Where panels of the columns are there already."""
MOST_COLUMN_SUMMANDS = 8192  # dot products sum all in the lanes of a vector; longer sums go in blocks, and lose less
MOST_HALF_ROWS = 8
"""Rows that dot products read halves for: each is converted once for four of them, in all as a float copy would be."""
LEAST_SMALL = 16
"""Small matrices of a batch from which on each takes a lane of a vector."""
SMALL_MACS = 4
"""What it takes to move an element of such a matrix, in multiplications of large ones."""


def matrix(plan: HostPlanner, tensor: Tensor) -> HostTensor:
    """Return float storage of a matrix, row-major or column-major."""
    held = plan.value(tensor, DType.FLOAT, contiguous=False)
    return held if rows_apart(held) else plan.value(tensor, DType.FLOAT)


def right_matrix(plan: HostPlanner, left: HostTensor, tensor: Tensor) -> HostTensor:
    """Return storage of a right operand: halves where dot products read them as they lie, else floats.

    Args:
        plan: The planner.
        left: The left operand, floats.
        tensor: The right one.
    """
    if tensor.dtype is DType.HALF and not plan.is_hoisting and not plan.may_have_floats(tensor):
        held = plan.value(tensor, contiguous=False)
        is_read_once = left.shape[-2] <= MOST_HALF_ROWS and left.shape[-1] > 0
        if is_read_once and held.dtype is DType.HALF and rows_apart(held) and bool(_is_few_dots(left, held)):
            return held
    return matrix(plan, tensor)


def is_small(batch: int, rows: int, columns: int, inner: int) -> bool:
    """Whether matrices of a batch are so small, and so many, that each takes a lane of a vector."""
    return batch >= LEAST_SMALL and max(rows * inner, inner * columns, rows * columns) <= SMALL_ELEMENTS


def emit_product(
    plan: HostPlanner,
    out: HostTensor,
    left: HostTensor,
    right: HostTensor,
    addend: HostTensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    adds: bool = False,
    activation: Activation = Activation.NONE,
) -> None:
    """Emit ``out = activation(alpha * left @ right + beta * addend)``.

    Args:
        plan: The planner.
        out: [M, N] or [B, M, N], row-major.
        left: [M, K] or [B, M, K], one of the last two strides 1.
        right: [K, N] or [B, K, N], likewise; halves where `right_matrix` gives them.
        addend: Anything that broadcasts to ``out``.
        alpha: Factor of the product.
        beta: Factor of the addend.
        adds: Add to what ``out`` holds; then there is no addend, and ``alpha`` is 1.
        activation: Of the whole; with one nothing is added onto ``out``, the factors are 1 and the addend is a row.
    """
    batch = out.shape[0] if len(out.shape) == 3 else 1
    rows, columns, inner = out.shape[-2], out.shape[-1], left.shape[-1]
    if 0 in (batch, rows, columns):
        return
    if inner == 0:  # an empty sum is zero: one product of zeros says the same, and the kernel has something to do
        left, right, inner = _zeros(plan, (*left.shape[:-1], 1)), _zeros(plan, (*right.shape[:-2], 1, columns)), 1
    is_plain = addend is None and alpha == 1.0 and not adds and activation is Activation.NONE
    if is_plain and is_small(batch, rows, columns, inner) and right.dtype is DType.FLOAT:
        _emit_small(plan, out, left, right)
        return
    is_few = _is_few_dots(left, right, MOST_DOT_ROWS_OF_PANELS if plan.packs_once(right) else MOST_DOT_ROWS)
    if right.dtype is DType.HALF or not plan.stays_floats(out):
        is_few = bool(is_few)
    if is_few is not False:
        with plan.only_where(is_few):
            _emit_dots(plan, out, left, right, addend, alpha, beta, adds=adds, activation=activation)
    if is_few is not True:
        with plan.only_where(number_of(is_few, False, True)):
            _emit_large(plan, out, left, right, addend, alpha, beta, adds=adds, activation=activation)


def _emit_large(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None, alpha: float,
    beta: float, *, adds: bool, activation: Activation,
) -> None:
    """Emit a product as one of tiles, or of a column."""
    batch = out.shape[0] if len(out.shape) == 3 else 1
    rows, columns, inner = out.shape[-2], out.shape[-1], left.shape[-1]
    is_column = columns == 1 and left.dtype is DType.FLOAT and inner <= MOST_COLUMN_SUMMANDS
    if is_column and bool(_is_few_dots(transposed(right), transposed(left))):
        # A column, as of a layer with one feature. Where activated its addend is one value, for a row as for a column.
        turned = None if addend is None else transposed(broadcast(addend, out.shape))
        _emit_dots(plan, transposed(out), transposed(right), transposed(left), turned, alpha, beta, adds=adds,
                   activation=activation, has_weights_right=False)
        return
    if not adds and not plan.packs_once(right) and _turns(left, right, addend, alpha, beta):
        _emit_turned(plan, out, left, right, addend, activation)
        return
    left_strides, right_strides = rows_apart(left), rows_apart(right)
    assert left_strides is not None
    assert right_strides is not None
    # A right operand of weights alone is packed ahead of the loop over micro-batches, if there is one.
    blocking = blocking_of(
        batch, rows, columns, inner, *left_strides, *right_strides, is_ready=plan.is_hoisting, adds=adds,
    )
    row_block, column_block = blocking.row_block, blocking.column_block
    if blocking.joins_summands and inner == 1:
        left_strides = 1, rows  # where the column of the next run would lie
    items = batch * -(-rows // row_block) * -(-columns // column_block)
    right, layout = _laid_right(plan, right, flag_of(blocking.has_panels))
    left, left_layout = _laid_left(plan, left, left_strides, flag_of(blocking.packs_ahead), row_block)
    addend_strides = broadcast_strides(addend, out) if addend is not None else (0, 0, 0)
    joining: Joining | None = None
    ints = MatmulInts(
        rows=rows, columns=columns, inner=inner, left_batch=left_layout[0], left_row=left_layout[1],
        left_column=left_layout[2], right_batch=layout[0], right_panel=layout[1], right_row=layout[2],
        row_block=row_block, column_block=column_block, sum_block=_sum_block(inner),
        packing=blocking.packing, has_addend=addend is not None,
        addend_batch=addend_strides[0], addend_row=addend_strides[1], addend_column=addend_strides[2],
        storing=_storing(inner) if adds else Storing.OVER,
        right_column=right_strides[1] * blocking.packs_in_items, run=inner, activation=activation,
    )
    if blocking.joins_summands:
        joining = partial(_join_summands, ints)
    # Nothing but micro-batches is joined: a plan of one run is the same on both sides of where that would pay.
    elif plan.is_hoisting and not adds and blocking.joins and left_layout[2] == 1:
        joining = partial(_join_rows, ints, 0 if blocking.has_panels else right_strides[1])
    plan.step(
        MATMUL, [out], [left, right] + ([addend] if addend is not None else []), ints=ints,
        scalars=MatmulScalars(alpha, beta), items=items,
        grain=grain_for(items, batch * rows * columns * inner, LEAST_CHUNK_MACS),
        scratch_bytes=blocking.scratch_bytes if joining is None else PACKED_BYTES,
        reads_outputs=adds, adds_up=adds, joining=joining,
        writes=[Blocks.of((batch, rows, columns), (1, row_block, column_block))],
        samples=_samples(out, left, right, addend, row_block),
    )


def _laid_right(plan: HostPlanner, right: HostTensor, has_panels: Any) -> tuple[HostTensor, tuple[int, int, int]]:
    """Return a right operand, packed where a flag says so, with its strides (batch, panel, row)."""
    row, column = rows_apart(right) or (1, 1)
    # Where no item packs its columns, these lie beside each other.
    lying = (right.strides[0] if len(right.shape) == 3 else 0, PANEL * column, row)
    if has_panels is False:
        return right, lying
    with plan.only_where(has_panels):
        panels, layout = right_panels(plan, right)
    return other_or(has_panels, panels, right), numbers_of(has_panels, layout, lying)


def _laid_left(
    plan: HostPlanner, left: HostTensor, strides: Sequence[int], packs_ahead: Any, row_block: int,
) -> tuple[HostTensor, tuple[int, int, int]]:
    """Return a left operand, packed where a flag says so, with its strides (batch, row, column)."""
    rows, inner = left.shape[-2:]
    lying = (left.strides[0] if len(left.shape) == 3 else 0, strides[0], strides[1])
    if packs_ahead is False:
        return left, lying
    with plan.only_where(packs_ahead):
        packed = packed_rows(plan, left, lying, left.shape[0] if len(left.shape) == 3 else 1, rows, inner, row_block)
    return other_or(packs_ahead, packed, left), numbers_of(packs_ahead, (rows * inner, inner, 1), lying)


def _samples(
    out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None, row_block: int,
) -> Samples:
    """Return what goes through a product by itself, for each of the places where an operand may lie."""
    if isinstance(left, EitherTensor):
        return chosen(left.flag, *(_samples(out, one, right, addend, row_block) for one in (left.other, left.itself)))
    if isinstance(right, EitherTensor):
        return chosen(right.flag, *(_samples(out, left, one, addend, row_block) for one in (right.other, right.itself)))
    return samples_of(out, left, right, addend, row_block)


def _join_rows(ints: MatmulInts, right_column: int, runs: int) -> Joined:
    """Make the product of the rows of several runs with one right operand.

    Args:
        ints: Of the product of a run.
        right_column: Stride from column to column of the right operand; 0 where it is packed.
        runs: How many.
    """
    rows = runs * ints.rows
    joined = _of_joined_blocks(ints, rows)._replace(rows=rows, right_column=right_column if rows > FEW_ROWS else 0)
    addend = [ints.addend_row] if ints.has_addend else []
    strides = tuple(4 * ints.rows * each for each in (ints.columns, ints.left_row, 0, *addend))
    return _joined(strides, joined)


def _join_summands(ints: MatmulInts, runs: int) -> Joined:
    """Make the product of several runs that add onto the same result: their summands follow one another.

    Sums round as if each run were a call of its own: its blocks begin and end with it.
    """
    inner = runs * ints.inner
    if ints.storing is Storing.ON_FROM:
        block = _sum_block(inner)
    elif ints.sum_block < ints.inner:
        block = ints.sum_block
    else:
        block = ints.inner * max(1, SUM_BLOCK // ints.inner)
    joined = _of_joined_blocks(ints, ints.rows)._replace(inner=inner, sum_block=block)
    return _joined((0, 4 * ints.inner * ints.left_column, 4 * ints.inner * ints.right_row), joined)


def _of_joined_blocks(ints: MatmulInts, rows: int) -> MatmulInts:
    """Return the numbers of a product whose items are those of a joined one."""
    row_block, column_block = cut(1, rows, ints.columns, *JOINED_BLOCK)
    packing = Packing.IN_ITEM if column_block >= LEAST_PACKED_COLUMNS else Packing.AS_IT_LIES
    return ints._replace(row_block=row_block, column_block=column_block, packing=packing)


def _joined(strides: tuple[int, ...], ints: MatmulInts) -> Joined:
    """Return the call of a product without a batch."""
    items = -(-ints.rows // ints.row_block) * -(-ints.columns // ints.column_block)
    work = ints.rows * ints.columns * ints.inner
    return Joined(strides, ints, items, grain_for(items, work, LEAST_CHUNK_MACS))


def _zeros(plan: HostPlanner, shape: tuple[int, ...]) -> HostTensor:
    """Return [..., M, N] of zeros, of which memory holds one row."""
    row = plan.constant([0.0] * shape[-1], DType.FLOAT)
    return HostTensor(row.buffer, 0, shape, (0,) * (len(shape) - 1) + (1,), DType.FLOAT)


@of_numbers
def _are_few(rows: int, most: int) -> bool:
    return rows <= most


def _is_few_dots(left: HostTensor, right: HostTensor, most_rows: int = MOST_DOT_ROWS) -> Any:
    """Whether the right operand's columns lie dense and meet so few rows that packing them costs more than it saves.

    Returns:
        A bool; a number where sizes decide the rows.
    """
    are_few = flag_of(_are_few(left.shape[-2], most_rows))
    if are_few is False or right.shape[-1] < LEAST_DOT_COLUMNS:
        return False
    left_strides, right_strides = rows_apart(left), rows_apart(right)
    assert left_strides is not None
    assert right_strides is not None
    lie_dense = left_strides[1] == 1 and right_strides[0] == 1 and right_strides[1] > 1
    return are_few if lie_dense else False


def _emit_dots(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None,
    alpha: float, beta: float, *, adds: bool, activation: Activation, has_weights_right: bool = True,
) -> None:
    """Emit ``out = alpha * left @ right + beta * addend`` as dot products of rows and columns.

    Several runs share the right operand, and are joined, where that is the one which may have the weights.
    """
    batch = out.shape[0] if len(out.shape) == 3 else 1
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    left_strides, right_strides = rows_apart(left), rows_apart(right)
    assert left_strides is not None
    assert right_strides is not None
    items = batch * -(-columns // DOT_BLOCK)
    addend_strides = broadcast_strides(addend, out) if addend is not None else (0, 0, 0)
    ints = MatmulDotsInts(
        rows=rows, columns=columns, inner=inner, left_batch=left.strides[0] if len(left.shape) == 3 else 0,
        left_row=left_strides[0], right_batch=right.strides[0] if len(right.shape) == 3 else 0,
        right_column=right_strides[1], column_block=DOT_BLOCK, has_addend=addend is not None,
        addend_batch=addend_strides[0], addend_row=addend_strides[1], addend_column=addend_strides[2], adds=adds,
        has_halves=right.dtype is DType.HALF, activation=activation,
    )
    plan.step(
        MATMUL_DOTS, [out], [left, right, *([] if addend is None else [addend])], ints=ints,
        scalars=MatmulScalars(alpha, beta), items=items,
        grain=grain_for(items, batch * columns * inner * largest(rows, 8), LEAST_CHUNK_MACS), reads_outputs=adds,
        adds_up=adds, joining=partial(_join_dots, ints) if has_weights_right and batch == 1 and not adds else None,
        writes=[Blocks.of((batch, rows, columns), (1, rows, DOT_BLOCK))],
    )


def _emit_small(plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor) -> None:
    """Emit the products of a batch of small matrices."""
    batch, rows, columns = out.shape
    inner = left.shape[-1]
    ints = MatmulSmallInts(
        rows=rows, columns=columns, inner=inner,
        left_batch=left.strides[0] if len(left.shape) == 3 else 0, left_row=left.strides[-2],
        left_column=left.strides[-1], right_batch=right.strides[0] if len(right.shape) == 3 else 0,
        right_row=right.strides[-2], right_column=right.strides[-1],
    )
    moved = rows * inner + inner * columns + rows * columns
    plan.step(
        MATMUL_SMALL, [out], [left, right], ints=ints, items=batch,
        grain=grain_for(batch, SMALL_MACS * batch * moved, LEAST_CHUNK_MACS),
        writes=[Blocks.of((batch, rows, columns), (1, rows, columns))], samples=samples_of(out, left, right, None, 1),
    )


def _join_dots(ints: MatmulDotsInts, runs: int) -> Joined:
    """Make the dot products of the rows of several runs with the same columns."""
    rows, items = runs * ints.rows, -(-ints.columns // DOT_BLOCK)
    addend = [ints.addend_row] if ints.has_addend else []
    strides = tuple(4 * ints.rows * each for each in (ints.columns, ints.left_row, 0, *addend))
    grain = grain_for(items, ints.columns * ints.inner * max(rows, 8), LEAST_CHUNK_MACS)
    return Joined(strides, ints._replace(rows=rows), items, grain)


def _turns(left: HostTensor, right: HostTensor, addend: HostTensor | None, alpha: float, beta: float) -> bool:
    """Whether to compute the transposed product: it packs the left operand, which is far smaller, not the right."""
    if len(left.shape) != 2 or alpha != 1.0:
        return False
    if not pays_to_turn(*left.shape, right.shape[1], right.strides[1]):
        return False
    is_row = addend is not None and addend.shape[-1] == right.shape[1] == addend.num_elements
    return addend is None or (beta == 1.0 and is_row and addend.strides[-1] == 1)


def _emit_turned(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None,
    activation: Activation,
) -> None:
    """Emit ``out = activation(left @ right + addend)`` as ``(right^T @ left^T + addend)^T``; the addend is one row."""
    rows, columns, inner = right.shape[1], left.shape[0], left.shape[1]
    strides = rows_apart(right)
    assert strides is not None
    turned, layout = right_operand(plan, transposed(left), rows, columns, inner)
    row_block, column_block = cut(1, rows, columns, *BLOCK)
    items = -(-rows // row_block) * -(-columns // column_block)
    plan.step(
        MATMUL,
        [out],
        [right, turned] + ([addend] if addend is not None else []),
        ints=MatmulInts(
            rows=rows, columns=columns, inner=inner, left_batch=0, left_row=strides[1], left_column=strides[0],
            right_batch=layout[0], right_panel=layout[1], right_row=layout[2], row_block=row_block,
            column_block=column_block, sum_block=_sum_block(inner), packing=Packing.AS_IT_LIES,
            has_addend=addend is not None, addend_batch=0, addend_row=1, addend_column=0, storing=Storing.TRANSPOSED,
            right_column=0, run=inner, activation=activation,
        ),
        scalars=MatmulScalars(1.0, 1.0),
        items=items,
        grain=grain_for(items, rows * columns * inner, LEAST_CHUNK_MACS),
        scratch_bytes=row_block * column_block * 4,
        writes=[Blocks((Along(rows, row_block, rows, 1), Along(columns, column_block, columns, rows)))],
    )


def _storing(inner: int) -> Storing:
    """Return how a run of so many summands is added onto what is there.

    A few summands for each load and store of a sum would take longer than these: sums then go on from run to run.
    """
    return Storing.ONTO if inner >= LEAST_SUMMANDS_FROM_ZERO else Storing.ON_FROM


@of_numbers
def _sum_block(inner: int) -> int:
    """Summands that a tile adds up at a time: its panel and rows then stay in the first cache or close to it."""
    return SUM_BLOCK if inner > 512 else max(1, inner)
