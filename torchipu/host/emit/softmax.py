"""Softmax over one dimension of a tensor, forward and backward."""

from __future__ import annotations

from torchipu._kernels.table import softmax as kernels
from torchipu.ir.arithmetic import ceil_div
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

SOFTMAX, LOG, SAFE = 0, 1, 2
BLOCK = 32  # positions that an item takes when the dimension is not the last; as in softmax_body.h
GRAIN_ELEMENTS = 16384

Split = tuple[int, int, int]
"""Sizes before, of and after a dimension."""


def emit_softmax(plan: HostPlanner, y: HostTensor, x: HostTensor, split: Split, mode: int) -> None:
    """Emit the softmax of ``x`` along the middle one of three dimensions, in float.

    Args:
        plan: Receives the step.
        y: Written, row-major.
        x: Read, row-major.
        split: Sizes of the three.
        mode: `SOFTMAX`, `LOG`, or `SAFE`, which gives zeros where all of a row is minus infinity.
    """
    outer, extent, inner = split
    if inner == 1:
        plan.step(kernels.SOFTMAX_ROWS, [y], [x], ints=(extent, mode), items=outer, grain=_rows_of_chunk(extent),
                  writes=[Blocks.rows(outer, y)])
    else:
        plan.step(kernels.SOFTMAX_COLUMNS, [y], [x], ints=(extent, inner, mode), items=outer * ceil_div(inner, BLOCK),
                  grain=_rows_of_chunk(extent * BLOCK), writes=[Blocks.of(split, (1, extent, BLOCK))])


def emit_softmax_gradient(
    plan: HostPlanner, dx: HostTensor, dy: HostTensor, y: HostTensor, split: Split, mode: int,
) -> None:
    """Emit the gradient of a softmax from that of its result ``dy`` and the result ``y``; see ``emit_softmax``."""
    outer, extent, inner = split
    if inner == 1:
        plan.step(kernels.SOFTMAX_ROWS_GRAD, [dx], [dy, y], ints=(extent, mode), items=outer,
                  grain=_rows_of_chunk(extent), writes=[Blocks.rows(outer, dx)])
    else:
        plan.step(kernels.SOFTMAX_COLUMNS_GRAD, [dx], [dy, y], ints=(extent, inner, mode),
                  items=outer * ceil_div(inner, BLOCK), grain=_rows_of_chunk(extent * BLOCK),
                  writes=[Blocks.of(split, (1, extent, BLOCK))])


def _rows_of_chunk(elements: int) -> int:
    return max(1, GRAIN_ELEMENTS // max(1, elements))
