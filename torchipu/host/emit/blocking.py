"""How a matrix product is cut into items, which of its operands are packed, and where: all that its sizes decide."""

from __future__ import annotations

from typing import NamedTuple

from torchipu._kernels.table.gemm import PANEL
from torchipu._kernels.table.matmul import Packing
from torchipu.host.emit.items import LEAST_ITEMS
from torchipu.host.emit.packing import (
    APART_IN_ONE_SET,
    FEW_ROWS,
    LARGE_BLOCK,
    LEAST_INNER,
    pays_for_panels,
    pays_to_pack_both,
    rows_packing,
    suits_wide_tiles,
)
from torchipu.host.emit.products import cut
from torchipu.ir.sizes import of_numbers

LEAST_TURNED = 200_000  # elements of a right operand that are too many to pack in each call
MOST_SUMMANDS = 512  # in a block
JOINED_BLOCK = (128, 16 * PANEL)
"""Rows and columns of an item of a joined product, which packs what it reads of both operands."""
PACKED_BYTES = 4 * (PANEL + JOINED_BLOCK[0]) * MOST_SUMMANDS
BLOCK = (112, 4 * PANEL)
"""Rows and columns of an item of any other product."""
BATCH_BLOCK = (224, 4 * PANEL)
"""The same where there are matrices enough for all threads: an item reads all of a matrix of attention, once."""
WIDE_BLOCK = (112, 24 * PANEL)
"""Rows and columns of an item of wide tiles: whole ones, of 96 columns and of 48."""
FLAT_BLOCK = (112, 32 * PANEL)
"""Rows and columns of an item that packs its rows: columns enough to pay for that."""
READY_BLOCK = (56, 128 * PANEL)
"""The same against panels that are packed once and for all: few rows, as long as all of the panels follow."""
ALIKE = 4
"""Blocks of rows against such panels are a multiple of so many, where there are more: few threads get as many each."""


class Blocking(NamedTuple):
    """What is decided of a product by its sizes; the flags are those that decide which steps there are.

    Attributes:
        packing: Where the rows of the left operand come from.
        packs_ahead: Whether that is a step of its own.
        joins: Whether several runs may make one call.
        joins_summands: Whether these follow one another as summands.
        packs_in_items: Whether items pack the panels of the right operand.
        has_panels: Whether a step of its own packs these.
        row_block: Rows of an item.
        column_block: Columns of an item.
        scratch_bytes: What items pack at a time.
    """

    packing: Packing
    packs_ahead: bool
    joins: bool
    joins_summands: bool
    packs_in_items: bool
    has_panels: bool
    row_block: int
    column_block: int
    scratch_bytes: int


@of_numbers
def blocking_of(
    batch: int, rows: int, columns: int, inner: int, left_row: int, left_column: int, right_row: int,
    right_column: int, *, is_ready: bool, adds: bool,
) -> Blocking:
    """Return how a product is cut and packed.

    Args:
        batch: Matrices.
        rows: Of each result.
        columns: Of each result.
        inner: Summands.
        left_row: From row to row of the left operand.
        left_column: From column to column.
        right_row: From row to row of the right operand.
        right_column: From column to column.
        is_ready: Whether panels of weights are packed ahead of a loop.
        adds: Whether the product is added to what is there.
    """
    left, right = (left_row, left_column), (right_row, right_column)
    is_batch = batch >= LEAST_ITEMS
    packs_both = is_batch and not is_ready and pays_to_pack_both(left, right, rows, columns, inner)
    packing = Packing.IN_ITEM if packs_both else rows_packing(
        left, right, rows, columns, inner, is_ready=is_ready, is_alone=batch == 1,
    )
    has_few = rows < FEW_ROWS or columns < 4 * PANEL or inner < LEAST_INNER
    joins = batch == 1 and has_few and packing is not Packing.AHEAD
    # To a kernel a stride of 0 from column to column says that there are panels: a column that stands for all is packed
    # ahead.
    has_columns = right_column > 0
    # Few summands for each micro-batch are packed where they are used: several of these then make one call.
    joins_summands = adds and joins and left_row == 1 and has_columns
    packs_panels = pays_for_panels(right, rows, columns, MOST_SUMMANDS if joins_summands else inner)
    # Rows far apart are not kept from panel to panel: few of them at a time, then, and panels for all.
    next_row = rows if joins_summands and inner == 1 else left_row
    is_flat = packing is Packing.IN_ITEM or (packing is Packing.AS_IT_LIES and next_row % APART_IN_ONE_SET == 0)
    is_large = packs_both or (packs_panels and has_columns and not (joins or is_flat or is_ready))
    packs_in_items = is_large or (joins_summands and packs_panels)
    is_wide = right_column == 1 and not packs_in_items and suits_wide_tiles(rows, columns, inner)
    block = (
        LARGE_BLOCK if is_large else READY_BLOCK if packing is Packing.IN_ITEM and is_ready
        else FLAT_BLOCK if packing is Packing.IN_ITEM else WIDE_BLOCK if is_wide else BATCH_BLOCK if is_batch else BLOCK
    )
    row_block, column_block = cut(
        batch, rows, columns, *block, least_columns=3 * PANEL if is_wide else PANEL,
        alike=ALIKE if block is READY_BLOCK else 1,
    )
    return Blocking(
        packing, packing is Packing.AHEAD, joins, joins_summands, packs_in_items,
        not packs_in_items and pays_for_panels(right, rows, columns, inner), row_block, column_block,
        PACKED_BYTES if packs_in_items or packing is Packing.IN_ITEM else 0,
    )


@of_numbers
def pays_to_turn(rows: int, inner: int, columns: int, right_column: int) -> bool:
    """Whether a product of these sizes is computed transposed, if what is added to it can be.

    Args:
        rows: Of the product.
        inner: Summands.
        columns: Of the product.
        right_column: From column to column of the right operand.
    """
    # Each panel reads all of the right operand, row-major weights even down their columns: slower than packing it.
    is_few = PANEL < rows <= 2 * PANEL and 2 * rows <= columns
    return is_few and inner * columns >= LEAST_TURNED and right_column != 1
