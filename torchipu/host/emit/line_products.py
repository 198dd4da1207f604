"""Host step of the products of a batch whose matrices have a single row, a single column, or a single summand each.

Both operands are read where they lie, along as many as three dimensions of the batch: windows that overlap, and
matrices that are repeated, need no copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchipu._kernels.table.line_products import LINE_PRODUCTS, LineProductsInts
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.products import samples_of
from torchipu.ir.graph import Tensor
from torchipu.ir.sizes import largest
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor, collapse, contiguous_strides
from torchipu.optable.planner import HostPlanner

MOST_SUMMANDS = 4096
"""All of them are added up in the lanes of vectors; longer sums go in blocks, and lose less."""
MOST_ELEMENTS = 1 << 18
"""Of a matrix: up to here lines took 0.66 to 1.06 times as long as other products, of 16 matrices on one Zen 4 core."""
LINE_MACS = 30
"""What beginning a product takes, in multiplications."""
DIMS = 3
"""Of the batch, that the kernel goes through."""


def are_lines(batch: int, rows: int, columns: int, inner: int) -> bool:
    """Whether products with so many rows, columns and summands are best computed line by line."""
    if 1 not in (rows, columns, inner) or 0 in (rows, columns, inner) or batch < LEAST_ITEMS:
        return False
    return inner <= MOST_SUMMANDS and max(rows * inner, inner * columns, rows * columns) <= MOST_ELEMENTS


def emit_line_products(plan: HostPlanner, out: HostTensor, left: Tensor, right: Tensor) -> None:
    """Emit ``out = left @ right``.

    Args:
        plan: The planner.
        out: `[B, M, N]`, row-major, for which `are_lines` holds.
        left: `[..., M, K]`, whose leading dimensions are ``B`` in all.
        right: `[..., K, N]`, likewise.
    """
    _, rows, columns = out.shape
    inner = left.shape[-1]
    batch, (held_left, held_right) = _batched(plan, left, right)
    of_left, of_right = (held.strides[-2:] for held in (held_left, held_right))
    if rows == 1 or (inner == 1 and columns > 1):
        line, matrix, step, (row, column) = held_left, held_right, of_left[1] if rows == 1 else of_left[0], of_right
    else:  # a column: the transposed product has the same elements in the same order
        line, matrix, step, (row, column) = held_right, held_left, of_right[0], of_left[::-1]
        rows, columns = columns, rows
    if columns == 1:  # a kernel that adds rows up goes by vectors of columns, one that adds columns up by its summands
        column = inner if row == 1 else 1
    sizes, of_line, of_matrix = _along_batch(batch, line, matrix)
    ints = LineProductsInts(
        rows=rows, columns=columns, inner=inner, sizes=sizes, line=(*of_line, step), matrix=(*of_matrix, row, column),
    )
    items = out.shape[0]
    plan.step(
        LINE_PRODUCTS, [out], [line, matrix], ints=ints, items=items,
        grain=grain_for(items, items * (LINE_MACS + rows * columns * inner), LEAST_CHUNK_MACS),
        scratch_bytes=4 * largest(inner, columns), samples=samples_of(out, line, matrix, None, 1),
    )


def _batched(plan: HostPlanner, left: Tensor, right: Tensor) -> tuple[tuple[int, ...], list[HostTensor]]:
    """Return the dimensions of the batch, and both operands with these before the last two."""
    batch = max((left.shape[:-2], right.shape[:-2]), key=len)
    held = [_lines(plan, tensor) for tensor in (left, right)]
    shown = [_with_batch(operand, batch) for operand in held]
    strides = [each.strides[:-2] for each in shown if each is not None]
    if len(strides) < len(shown) or len(collapse(batch, *strides)[0]) > DIMS:
        held = [plan.value(tensor, DType.FLOAT) for tensor in (left, right)]
        shown = [_with_batch(operand, batch) for operand in held]
    return batch, [each for each in shown if each is not None]


def _lines(plan: HostPlanner, tensor: Tensor) -> HostTensor:
    """Return floats whose rows or columns lie dense; or either, of a matrix of a single line."""
    held = plan.value(tensor, DType.FLOAT, contiguous=False)
    is_line = 1 in held.shape[-2:]
    return held if is_line or 1 in held.strides[-2:] else plan.value(tensor, DType.FLOAT)


def _with_batch(held: HostTensor, batch: Sequence[int]) -> HostTensor | None:
    """Show matrices in other dimensions of the batch that hold as many; None where strides cannot."""
    if held.shape[:-2] == tuple(batch):
        return held
    sizes, (steps,) = collapse(held.shape[:-2], held.strides[:-2])
    if len(sizes) != 1:
        return None
    strides = (*(steps[0] * stride for stride in contiguous_strides(batch)), *held.strides[-2:])
    return HostTensor(held.buffer, held.offset, (*batch, *held.shape[-2:]), strides, held.dtype)


def _along_batch(
    batch: Sequence[int], line: HostTensor, matrix: HostTensor,
) -> tuple[tuple[int, int], tuple[int, int, int], tuple[int, int, int]]:
    """Return the last two sizes of three dimensions of the batch, and the strides of both operands along all three."""
    sizes, strides = collapse(batch, line.strides[:-2], matrix.strides[:-2])
    more = DIMS - len(sizes)
    _, middle, last = (*(1,) * more, *sizes)
    (a, b, c), (d, e, f) = ((*(0,) * more, *each) for each in strides)
    return (middle, last), (a, b, c), (d, e, f)
