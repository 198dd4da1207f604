"""Compute sets of access to rows by index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchipu.device.codelets import FILL, MULTI_SLICE, MULTI_UPDATE_ADD
from torchipu.device.compute_sets import copy_set, elementwise_set, gather_set
from torchipu.device.tilings.lines import Look, Update, looked_up, prepared, updated
from torchipu.ir.graph import Op
from torchipu.optable.codelet import Lowering, Vertices
from torchipu.target import Target

Lowered = Callable[[Op], int]


def lower_take(row_of: Lowered, look_of: Callable[[Op], Look]) -> Lowering:
    """Return the lowering of a look-up.

    Args:
        row_of: Tells how many elements one index selects.
        look_of: Tells which lines are read and written.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result, row = op.outputs[0], max(1, row_of(op))
        if result.num_elements == 0:
            return ()
        rows = op.inputs[0].num_elements // row
        taken = gather_set(target, MULTI_SLICE, result.num_elements // row, row, result.dtype, table_rows=rows)
        return (replace(taken, tiling=looked_up(look_of)),)

    return lower


def lower_update(row_of: Lowered, index_of: Lowered, update_of: Callable[[Op], Update] | None = None) -> Lowering:
    """Return the lowering of a write by index: the old value is copied, or zeros are filled in, then rows are written.

    Args:
        row_of: Tells how many elements one index selects.
        index_of: Tells how many indices there are.
        update_of: Tells which lines are updated, where the update goes by lines.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result, row = op.outputs[0], max(1, row_of(op))
        if result.num_elements == 0:
            return ()
        if op.operand("self") is None:
            first = elementwise_set(target, FILL, result.num_elements, result.dtype)
        else:
            first = copy_set(target, result.num_elements, result.dtype, moved=False)
        rows, named = max(1, result.num_elements // row), max(1, index_of(op))
        second = gather_set(target, MULTI_UPDATE_ADD, named, row, result.dtype, table_rows=rows)
        if update_of is None:
            return first, second
        return replace(first, tiling=prepared(update_of)), replace(second, tiling=updated(update_of))

    return lower
