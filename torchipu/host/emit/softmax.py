"""Softmax over one dimension of a tensor, forward and backward."""

from __future__ import annotations

from torchipu._kernels.table import softmax as kernels
from torchipu._kernels.table.softmax import SOFTMAX_BLOCK, SoftmaxColumnsInts, SoftmaxMode, SoftmaxRowsInts
from torchipu.host.emit.stored import STORED, stored_alike
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.samples import Samples

GRAIN_ELEMENTS = 16384

Split = tuple[int, int, int]
"""Sizes before, of and after a dimension."""


def emit_softmax(plan: HostPlanner, y: HostTensor, x: HostTensor, split: Split, mode: SoftmaxMode) -> None:
    """Emit the softmax of ``x`` along the middle one of three dimensions, in float, of what `read_rows` returns.

    Args:
        plan: Receives the step.
        y: Written, row-major.
        x: Read, row-major.
        split: Sizes of the three.
        mode: What becomes of a row.
    """
    outer, extent, inner = split
    stored = STORED[x.dtype]
    if inner == 1:
        plan.step(kernels.SOFTMAX_ROWS, [y], [x], ints=SoftmaxRowsInts(extent, mode, stored=stored), items=outer,
                  grain=_rows_of_chunk(extent), scratch_bytes=4 * extent if stored else 0,
                  writes=[Blocks.rows(outer, y)], samples=Samples.of(outer, y, x))
    else:
        plan.step(kernels.SOFTMAX_COLUMNS, [y], [x], ints=SoftmaxColumnsInts(extent, inner, mode),
                  items=outer * ceil_div(inner, SOFTMAX_BLOCK), grain=_rows_of_chunk(extent * SOFTMAX_BLOCK),
                  writes=[Blocks.of(split, (1, extent, SOFTMAX_BLOCK))])


def emit_softmax_gradient(
    plan: HostPlanner, dx: HostTensor, dy: HostTensor, y: HostTensor, split: Split, mode: SoftmaxMode,
) -> None:
    """Emit the gradient of a softmax from that of its result ``dy`` and the result ``y``; see ``emit_softmax``."""
    outer, extent, inner = split
    stored = STORED[y.dtype]
    if inner == 1:
        plan.step(kernels.SOFTMAX_ROWS_GRAD, [dx], [dy, y], ints=SoftmaxRowsInts(extent, mode, stored=stored),
                  items=outer, grain=_rows_of_chunk(extent), scratch_bytes=8 * extent if stored else 0,
                  writes=[Blocks.rows(outer, dx)], samples=Samples.of(outer, dx, dy, y))
    else:
        plan.step(kernels.SOFTMAX_COLUMNS_GRAD, [dx], [dy, y], ints=SoftmaxColumnsInts(extent, inner, mode),
                  items=outer * ceil_div(inner, SOFTMAX_BLOCK), grain=_rows_of_chunk(extent * SOFTMAX_BLOCK),
                  writes=[Blocks.of(split, (1, extent, SOFTMAX_BLOCK))])


def read_rows(plan: HostPlanner, split: Split, *tensors: Tensor) -> tuple[HostTensor, ...]:
    """Return operands of a softmax, row-major: halves or bfloats where all are, if rows are read; else floats."""
    return stored_alike(plan, *tensors) if split[2] == 1 else tuple(plan.value(one, DType.FLOAT) for one in tensors)


def _rows_of_chunk(elements: int) -> int:
    return max(1, GRAIN_ELEMENTS // max(1, elements))
