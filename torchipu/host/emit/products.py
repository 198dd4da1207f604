"""What the emitters of matrix products share: how a product is cut into items, and how an addend lies over it."""

from __future__ import annotations

from torchipu._kernels.table.gemm import PANEL
from torchipu.host.emit.items import LEAST_ITEMS
from torchipu.ir.sizes import of_numbers
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.samples import Samples

TILE_ROWS = 14
"""Rows of a whole register tile: blocks of as many have none of fewer rows, but the last."""


def samples_of(
    out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None, row_block: int,
) -> Samples:
    """Return what goes through a product by itself: a matrix of a batch, or a block of rows of the only one."""
    shared = [None] * (addend is not None)
    if len(out.shape) == 3 and out.shape[0] > 1:
        return Samples.of(out.shape[0], out, left, right, *shared)
    return Samples.of(out.shape[-2], out, left, None, *shared, each=row_block)


@of_numbers
def cut(
    batch: int, rows: int, columns: int, most_rows: int, most_columns: int, *, least_columns: int = PANEL,
    alike: int = 1,
) -> tuple[int, int]:
    """Rows and columns of an item: large enough to reuse operands, small enough to share out.

    With ``alike`` above one, blocks of rows are a multiple of so many where there are more, of about ``most_rows``.
    """
    row_blocks = -(-rows // most_rows)
    if row_blocks > alike > 1:
        row_blocks = max(1, round(rows / (alike * most_rows))) * alike
    row_block = -(-rows // row_blocks)
    if alike == 1 < row_blocks:
        row_block = -(-row_block // TILE_ROWS) * TILE_ROWS
    column_block = -(-columns // (-(-columns // most_columns) * least_columns)) * least_columns
    while column_block > least_columns and batch * -(-rows // row_block) * -(-columns // column_block) < LEAST_ITEMS:
        column_block = -(-column_block // (2 * least_columns)) * least_columns
    while row_block > 28 and batch * -(-rows // row_block) * -(-columns // column_block) < LEAST_ITEMS:
        row_block = -(-row_block // 2)
    return row_block, column_block


def transposed(held: HostTensor) -> HostTensor:
    """Show a matrix, or each of a batch, with rows for columns."""
    *batch, rows, columns = held.shape
    *apart, row, column = held.strides
    return HostTensor(held.buffer, held.offset, (*batch, columns, rows), (*apart, column, row), held.dtype)


def broadcast_strides(addend: HostTensor, out: HostTensor) -> tuple[int, int, int]:
    """Strides (batch, row, column) of the addend over the output; 0 where it is broadcast."""
    shape = (1,) * (3 - len(addend.shape)) + addend.shape
    strides = (0,) * (3 - len(addend.strides)) + addend.strides
    first, second, third = (0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))
    # A single column has no neighbours: any stride serves, and 1 is the fast one.
    return first, second, third if out.shape[-1] > 1 else 1
