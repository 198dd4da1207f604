"""Compute sets of access to rows by index."""

from __future__ import annotations

from collections.abc import Callable

from torchipu.device.codelets import FILL, MULTI_SLICE, MULTI_UPDATE_ADD
from torchipu.device.compute_sets import copy_set, elementwise_set, gather_set
from torchipu.ir.graph import Op
from torchipu.optable.codelet import Lowering, Vertices
from torchipu.target import Target

Lowered = Callable[[Op], int]


def lower_take(row_of: Lowered) -> Lowering:
    """Return the lowering of a look-up.

    Args:
        row_of: Tells how many elements one index selects.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result, row = op.outputs[0], max(1, row_of(op))
        if result.num_elements == 0:
            return ()
        rows = op.inputs[0].num_elements // row
        return (gather_set(target, MULTI_SLICE, result.num_elements // row, row, result.dtype, table_rows=rows),)

    return lower


def lower_update(row_of: Lowered, index_of: Lowered) -> Lowering:
    """Return the lowering of a write by index: the old value is copied, or zeros are filled in, then rows are written.

    Args:
        row_of: Tells how many elements one index selects.
        index_of: Tells how many indices there are.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result, row = op.outputs[0], max(1, row_of(op))
        if result.num_elements == 0:
            return ()
        if op.operand("self") is None:
            first = elementwise_set(target, FILL, result.num_elements, result.dtype)
        else:
            first = copy_set(target, result.num_elements, result.dtype, moved=False)
        rows, looked_up = max(1, result.num_elements // row), max(1, index_of(op))
        return first, gather_set(target, MULTI_UPDATE_ADD, looked_up, row, result.dtype, table_rows=rows)

    return lower
