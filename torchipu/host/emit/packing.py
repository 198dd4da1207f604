"""Which operands of a matrix product are packed, where, and the steps that pack them."""

from __future__ import annotations

from torchipu._kernels.table.gemm import FEW_SUMMANDS, PANEL, SUM_BLOCK, WIDE_ROWS
from torchipu._kernels.table.matmul import MATMUL_PACK, MATMUL_PACK_ROWS, MatmulPackInts, MatmulPackRowsInts, Packing
from torchipu.host.emit.items import grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.samples import Samples

PACK_BLOCK = 256  # summands that an item of a packing takes
FEW_ROWS, LEAST_INNER = 28, 64
LEAST_PACKED_COLUMNS = 8 * PANEL  # of an item that packs its rows
MOST_DENSE_ROWS = 12 * PANEL
"""Dense rows so few that they are packed ahead where items pack row-major panels: tiles then fetch or pack these."""
MOST_SUMMANDS_OF_BOTH, LEAST_COLUMNS_OF_BOTH = 128, 6 * PANEL
"""Summands so few that an item packs all rows of a matrix of a batch, and columns that pay for that."""
L2_BYTES = 2 << 20  # of a core of the machines that we measure on
FEW_PANELS, MOST_SUMMANDS_ACROSS, MOST_SUMMANDS_ALONG = 8, 2048, 4096
APART_IN_ONE_SET = 1024  # elements: 64 sets of a cache line each
MOST_ROWS_IN_SETS = 128  # so few rows are read again before much else is
LARGE_BLOCK = (518, 8 * PANEL)
"""Rows and columns of an item that packs its panels: rows enough to pay for that, 37 tiles of 14."""
FEW_READY_SUMMANDS = 256
"""Summands so few that rows are read as they lie against ready panels: packing them costs more than it saves."""


def rows_apart(tensor: HostTensor) -> tuple[int, int] | None:
    """Return the strides of the last two dimensions if one of them is 1, else None."""
    column = tensor.strides[-1] if tensor.shape[-1] > 1 else 1
    alone = max(1, tensor.shape[-1]) if column == 1 else 1  # a single row has no neighbours
    row = tensor.strides[-2] if tensor.shape[-2] > 1 else alone
    if column == 1 or row == 1:
        return row, column
    return None


def right_operand(
    plan: HostPlanner, right: HostTensor, rows: int, columns: int, inner: int,
) -> tuple[HostTensor, tuple[int, int, int]]:
    """Pack the right operand where that pays; return it with its strides (batch, panel, row)."""
    strides = rows_apart(right)
    assert strides is not None
    return right_panels(plan, right) if pays_for_panels(strides, rows, columns, inner) else as_it_lies(right)


def as_it_lies(right: HostTensor) -> tuple[HostTensor, tuple[int, int, int]]:
    """Return a right operand, whose rows are dense, with its strides (batch, panel, row)."""
    strides = rows_apart(right)
    assert strides is not None
    return right, (right.strides[0] if len(right.shape) == 3 else 0, PANEL, strides[0])


def right_panels(plan: HostPlanner, right: HostTensor) -> tuple[HostTensor, tuple[int, int, int]]:
    """Pack a right operand; return it with its strides (batch, panel, row)."""
    packed = packed_panels(plan, right)
    each, panel, row, _ = packed.strides
    return packed, (each if packed.shape[0] > 1 else 0, panel, row)


def rows_packing(
    left: tuple[int, int], right: tuple[int, int], rows: int, columns: int, inner: int, *,
    is_ready: bool, is_alone: bool,
) -> Packing:
    """Return where the rows of the left operand come from, whose packing every panel of the right one pays for.

    Args:
        left: Strides of the left operand.
        right: Of the right one.
        rows: Of the product.
        columns: Of the product.
        inner: Summands.
        is_ready: Whether the right operand's panels are there already.
        is_alone: Whether it is no product of a batch.
    """
    is_small = rows < FEW_ROWS or inner < LEAST_INNER or (columns < 2 * PANEL and not _fall_out(left, rows, columns))
    is_wide = right[1] == 1 and suits_wide_tiles(rows, columns, inner)
    if left[1] != 1 and not is_wide and _is_of_few_summands(rows, columns, inner):
        return Packing.IN_ITEM
    if is_small or is_wide or _reads_as_it_lies(right, rows, columns, inner):
        return Packing.AS_IT_LIES
    if is_alone and not is_ready and _meets_row_major_panels(left, right, rows, columns, inner):
        return Packing.AHEAD
    if not _packs_rows(left, rows, columns, inner, is_ready):
        return Packing.AS_IT_LIES
    # One of the two is packed ahead, and so written to memory and read again: the one with fewer elements.
    return Packing.AHEAD if columns > rows and not is_ready else Packing.IN_ITEM


def _is_of_few_summands(rows: int, columns: int, inner: int) -> bool:
    """Whether what is written takes most of the time, as for a weight's gradient of few samples: operands are small."""
    return inner < LEAST_INNER and rows >= FEW_ROWS and columns >= 4 * PANEL


def _packs_rows(strides: tuple[int, int], rows: int, columns: int, inner: int, is_ready: bool) -> bool:
    """Whether it pays to pack the left operand of a large product."""
    if strides[1] != 1:  # its rows lie across: what a tile reads of each is less than a cache line or two
        return rows > FEW_PANELS * PANEL or columns > FEW_PANELS * PANEL or inner > MOST_SUMMANDS_ACROSS
    if columns <= FEW_PANELS * PANEL:
        return 4 * inner * columns > 2 * L2_BYTES or _fall_out(strides, rows, columns)
    is_long = inner > (FEW_READY_SUMMANDS if is_ready else MOST_SUMMANDS_ALONG)
    return is_long or strides[0] % APART_IN_ONE_SET == 0


def _fall_out(strides: tuple[int, int], rows: int, columns: int) -> bool:
    """Whether a tile's rows fall out of the first cache before they are used up, and few columns pay for packing them.

    Rows so far apart fall into one set, which holds fewer than the 14 of a tile of long vectors; six of a tile of short
    ones stay. Measured, packing takes 0.8 to 0.95 of the time, but for a single whole panel, where rows wait the least.
    """
    is_one_panel = PANEL // 2 < columns <= PANEL
    if vector_lanes() * 2 < PANEL:
        return False
    return strides[1] == 1 and strides[0] % APART_IN_ONE_SET == 0 and rows > MOST_ROWS_IN_SETS and not is_one_panel


def _meets_row_major_panels(left: tuple[int, int], right: tuple[int, int], rows: int, columns: int, inner: int) -> bool:
    """Whether rows are packed ahead, so that tiles fetch the panel that comes next, or pack it while they multiply."""
    is_few = rows <= MOST_DENSE_ROWS if left[1] == 1 else rows <= LARGE_BLOCK[0] and inner >= SUM_BLOCK
    return is_few and right[1] == 1 and columns >= LEAST_PACKED_COLUMNS


def pays_to_pack_both(left: tuple[int, int], right: tuple[int, int], rows: int, columns: int, inner: int) -> bool:
    """Whether items of a batch pack both operands, whose summands lie dense: each row then is one short run."""
    is_large = rows >= FEW_ROWS and columns >= LEAST_COLUMNS_OF_BOTH and inner <= MOST_SUMMANDS_OF_BOTH
    return is_large and left[1] == 1 and right[0] == 1 and right[1] > 1


def suits_wide_tiles(rows: int, columns: int, inner: int) -> bool:
    """Whether a product is one for wide tiles."""
    return columns >= 3 * PANEL and (rows <= WIDE_ROWS or inner <= FEW_SUMMANDS)


def _reads_as_it_lies(strides: tuple[int, int], rows: int, columns: int, inner: int) -> bool:
    """Whether the right operand, as it lies, is small in the second cache, for rows too few to pay for panels."""
    return strides[1] == 1 and rows <= FEW_PANELS * PANEL and 4 * inner * columns <= L2_BYTES // 8


def pays_for_panels(strides: tuple[int, int], rows: int, columns: int, inner: int) -> bool:
    """Whether it pays to pack the right operand."""
    row, column = strides
    if _reads_as_it_lies(strides, rows, columns, inner) or (column == 1 and suits_wide_tiles(rows, columns, inner)):
        return False
    # Rows a multiple of 1 KiB apart fall into few cache sets; few rows of output read each panel only once or twice.
    conflicts = row % 256 == 0 and inner >= 64
    return column != 1 or not (rows <= FEW_ROWS or (rows <= 2 * FEW_ROWS and not conflicts) or columns <= PANEL)


def packed_panels(plan: HostPlanner, right: HostTensor) -> HostTensor:
    """Emit the packing of right operands and return their panels.

    Args:
        plan: Receives the step.
        right: `[K, N]` or `[B, K, N]`, one of the last two strides 1.

    Returns:
        `[B, ceil(N / 32), K, 32]`, zero beyond column N; B is 1 where all of a batch share one operand.
    """
    inner, columns = right.shape[-2:]
    strides = rows_apart(right)
    assert strides is not None
    row, column = strides
    right_batch = right.strides[0] if len(right.shape) == 3 else 0
    batch = right.shape[0] if right_batch else 1
    panels = -(-columns // PANEL)
    packed = plan.scratch((batch, panels, inner, PANEL))
    items = batch * panels * -(-inner // PACK_BLOCK)
    plan.step(
        MATMUL_PACK,
        [packed],
        [right],
        ints=MatmulPackInts(
            inner=inner, columns=columns, batch_stride=right_batch, row_stride=row, column_stride=column,
            block=PACK_BLOCK,
        ),
        items=items,
        grain=grain_for(items, batch * panels * inner * PANEL, 32768),
    )
    return packed


def packed_rows(
    plan: HostPlanner, left: HostTensor, strides: tuple[int, int, int], batch: int, rows: int, inner: int,
    row_block: int,
) -> HostTensor:
    """Emit the packing of left operands `[batch, rows, inner]` for items of ``row_block`` rows."""
    packed = plan.scratch((batch, rows, inner))
    items = batch * -(-rows // row_block) * -(-inner // PACK_BLOCK)
    plan.step(
        MATMUL_PACK_ROWS, [packed], [left], items=items,
        ints=MatmulPackRowsInts(
            rows=rows, inner=inner, batch_stride=strides[0], row_stride=strides[1], column_stride=strides[2],
            row_block=row_block, block=PACK_BLOCK,
        ),
        grain=grain_for(items, batch * rows * inner, 32768),
        samples=Samples.of(batch, packed, left) if batch > 1 else Samples.of(rows, packed, left, each=row_block),
    )
    return packed
