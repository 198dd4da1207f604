"""Compute sets of access to rows by index; what they do is planned in ``multi_slice``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torchipu.device.codelets import (
    ARRANGED_ROWS,
    COPY,
    FILL,
    INDEX_TO_PART,
    MIN_BYTES_PER_TILE,
    MULTI_SLICE,
    MULTI_UPDATE_ADD,
    SUM_OF_SLICES,
    SUM_OF_TABLES,
    busiest_elements,
)
from torchipu.device.compute_sets import copy_set, elementwise_set
from torchipu.device.matrix_unit import AVAILABLE_MEMORY
from torchipu.device.multi_slice import (
    GRAIN_BYTES,
    INDEX_BYTES,
    PARTIAL_BYTES,
    Access,
    SlicePlan,
    plan_look,
    plan_update,
)
from torchipu.device.tilings.look_ups import Look, arranged, chosen, looked_up
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.partials import LAST, SUM, Reduction
from torchipu.device.tilings.updates import Update, added, finished, prepared, updated
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.codelet import Codelet, Lowering, Vertices
from torchipu.target import Target

LEAST_STORED_BYTES = 128  # of a table on a tile; as of all variables, tile_mapping


def lower_take(look_of: Callable[[Op], Look]) -> Lowering:
    """Return the lowering of a look-up.

    Args:
        look_of: Tells which lines are read and written.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result = op.outputs[0]
        if result.num_elements == 0:
            return ()
        look = look_of(op)
        lines = len(look.result.starts)
        access = Access(
            lines, len(look.table.steps), len(look.result.steps), result.dtype.device_bytes,
            is_shared=look.index[0].lines.is_shared, is_one_point=is_one_point(op),
        )
        plan = plan_look(target, access, available_memory(op))
        sets = [replace(slice_set(plan), tiling=looked_up(look_of, plan))]
        if plan.row_parts > 1:
            sets += [
                replace(_part_set(target, look.index[0].tensor), tiling=nothing_left),
                replace(_choice_set(plan), tiling=chosen(look_of, plan)),
            ]
        return *sets, replace(_arranged_set(target, plan, result), tiling=arranged(look_of, plan))

    return lower


def lower_update(update_of: Callable[[Op], Update]) -> Lowering:
    """Return the lowering of a write by index: the old value is copied, or zeros are filled in, then rows are written.

    A state lies as the plan has it, and its rows are written where they are; so are sums of partial sums of all rows.

    Args:
        update_of: Tells which lines are updated.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result = op.outputs[0]
        if result.num_elements == 0:
            return ()
        update = update_of(op)
        reduction = _reduction_of(update, result)
        old = op.operand("self") if update.has_old else None
        if old is None:
            first = elementwise_set(target, FILL, result.num_elements, result.dtype)
        else:
            first = copy_set(target, result.num_elements, result.dtype, moved=False)
        first = replace(first, tiling=prepared(update_of))
        lines, named = len(update.result.starts), len(update.index[0].lines.steps)
        if lines == 0 or named == 0 or len(update.result.steps) == 0:
            return first, replace(_arranged_set(target, None, result), tiling=finished(update_of, None))
        access = Access(
            lines, len(update.result.steps), named, result.dtype.device_bytes,
            is_shared=update.index[0].lines.is_shared, adds=reduction == SUM, is_one_point=is_one_point(op),
            tables=reduction.tables if reduction is not None else 0,
        )
        plan = plan_update(target, access, available_memory(op))
        in_place = _is_in_place(update, old, result, plan)
        sets = [replace(update_set(plan), tiling=updated(update_of, plan, in_place=in_place))]
        if plan.lookup_parts == 1 and not in_place:
            sets = [replace(_held_set(plan), tiling=nothing_left), *sets]
        if plan.lookup_parts > 1:
            zeros = replace(_zeros_set(target, plan), tiling=nothing_left)
            sets = [zeros, *sets, *(
                replace(one, tiling=added(update_of, plan, level, in_place=in_place)) for level, one in _sum_sets(plan)
            )]
        if in_place:
            return tuple(sets)
        last = _arranged_set(target, plan, result, ARRANGED_ROWS)
        return first, *sets, replace(last, tiling=finished(update_of, plan))

    return lower


def _reduction_of(update: Update, result: Tensor) -> Reduction | None:
    """Return how results of some of the indices are joined; what adds up truths has none."""
    return None if result.dtype is DType.BOOL and update.reduction != LAST else update.reduction


def _is_in_place(update: Update, old: Tensor | None, result: Tensor, plan: SlicePlan) -> bool:
    """Return whether a result is written where it lies, without a copy of what was there before, or of what is made.

    So is a state with rows written, which lies as planned, and a sum of partial sums of all rows; no element may be
    left out.
    """
    is_whole = len(update.result.starts) * len(update.result.steps) == result.num_elements
    lies_so = old is not None and (old.role.is_state or plan.sums_whole_rows)
    return old is not None and lies_so and old.dtype is result.dtype and is_whole


def available_memory(op: Op) -> float:
    """Return the part of a tile's memory that temporary values of an op may use."""
    return float(str(op.attrs.get("available_memory", AVAILABLE_MEMORY)))


def is_one_point(op: Op) -> bool:
    """Return whether all indices of an op may name one row."""
    return op.attrs.get("indices_distribution") == "one_point"


# --------------------------------------------------------------------------- sets of a plan
def _planned(
    plan: SlicePlan, codelet: Codelet, indices: int, parts: int, gathered_bytes: int, fragments: int, tables: int = 1,
) -> Vertices:
    """Return a compute set of all vertices of a plan.

    Args:
        plan: The plan.
        codelet: What runs.
        indices: That a vertex goes through.
        parts: Of these, one in so many is of a row that the vertex has.
        gathered_bytes: That a vertex receives.
        fragments: Pieces of it.
        tables: Values of each element that a row is written to.
    """
    here = ceil_div(indices, parts)
    work = {
        "rows": here, "elsewhere": indices - here, "elements": here * plan.width * tables,
        "element_bytes": plan.access.element_bytes, "is_one_point": int(plan.access.is_one_point),
    }
    return Vertices(
        codelet, plan.vertices, lambda count: work, gathered_bytes=gathered_bytes, fragments=fragments,
        temporary_bytes=gathered_bytes + indices * plan.width * plan.access.element_bytes, max_tiles=plan.vertices,
    )


def by_columns(target: Target, shape: Sequence[int], lookups: int, dtype: DType) -> SlicePlan:
    """Return a plan whose vertices have columns of a table, or as few as there are tiles, and go through all indices.

    Args:
        target: The machine.
        shape: Of the table: rows, and elements of a row.
        lookups: Indices.
        dtype: Of the table.
    """
    rows, width = shape
    lines = ceil_div(width, min(width, target.num_tiles))
    return SlicePlan(Access(width, rows, lookups, dtype.device_bytes), lines, rows, lookups)


def by_rows(target: Target, shape: Sequence[int], lookups: int, dtype: DType) -> SlicePlan:
    """Return a plan whose vertices have whole rows of a table, and go through all indices; see `by_columns`."""
    rows, width = shape
    each = ceil_div(rows, min(rows, target.num_tiles))
    return SlicePlan(Access(width, rows, lookups, dtype.device_bytes), width, each, lookups)


def slice_set(plan: SlicePlan) -> Vertices:
    """Return the set that looks rows up in parts of a table; copies of it come from where each lies once."""
    indices = plan.indices(plan.lookups)
    table = plan.lines * plan.rows * plan.access.element_bytes if plan.lookup_parts > 1 else 0
    pieces = min(plan.lookup_parts, ceil_div(table, LEAST_STORED_BYTES))
    return _planned(plan, MULTI_SLICE, indices, plan.sharers, table + indices * INDEX_BYTES, 1 + pieces)


def _part_set(target: Target, index: Tensor) -> Vertices:
    """Return the set that finds out which part has each index, where the indices lie: on few tiles, as storage does."""
    indices = elementwise_set(target, INDEX_TO_PART, index.num_elements, DType.INT)
    return replace(indices, max_tiles=max(1, index.num_elements // ceil_div(MIN_BYTES_PER_TILE, INDEX_BYTES)))


def _choice_set(plan: SlicePlan) -> Vertices:
    """Return the set that chooses, for each index, what the part that has its row has found."""
    indices = plan.indices(plan.chosen)
    found = plan.row_parts * indices * plan.width * plan.access.element_bytes
    return _planned(plan, MULTI_SLICE, indices, 1, found + indices * INDEX_BYTES, 1 + plan.row_parts)


def _arranged_set(target: Target, plan: SlicePlan | None, result: Tensor, codelet: Codelet = COPY) -> Vertices:
    """Return the set that lays rows out in the order of a result; they come in pieces as wide as the plan's lines."""
    dtype = result.dtype
    grain = target.vector_width(dtype.device_bytes)
    mine = busiest_elements(target, result.num_elements, grain, dtype.device_bytes)
    num_bytes = mine * dtype.device_bytes
    return Vertices(
        codelet, result.num_elements, lambda count: {"bytes": count * dtype.device_bytes, "element_bytes": 8},
        grain=grain, gathered_bytes=num_bytes, fragments=ceil_div(mine, plan.width if plan else mine),
        temporary_bytes=num_bytes,
    )


def update_set(plan: SlicePlan) -> Vertices:
    """Return the set that adds rows to those of parts of a table, which lie where it runs."""
    indices = plan.indices(plan.lookups)
    received = indices * (plan.width * plan.access.element_bytes + INDEX_BYTES)
    return _planned(plan, MULTI_UPDATE_ADD, indices, plan.sharers, received, 1 + plan.lookups, plan.tables)


def scaled_set(plan: SlicePlan) -> Vertices:
    """Return the set that scales rows of parts of a table which indices name: nothing but these is received."""
    indices, table = plan.indices(plan.lookups), plan.lines * plan.rows * plan.access.element_bytes
    received = indices * INDEX_BYTES
    return replace(
        _planned(plan, MULTI_UPDATE_ADD, indices, plan.sharers, received, 1), temporary_bytes=received + table,
    )


def _held_set(plan: SlicePlan) -> Vertices:
    """Return the set that lays out what a table was before its rows are updated; they come in pieces as its result."""
    num_bytes = plan.lines * plan.rows * plan.access.element_bytes
    return Vertices(
        ARRANGED_ROWS, plan.vertices, lambda count: {"bytes": num_bytes, "element_bytes": 8}, gathered_bytes=num_bytes,
        fragments=plan.rows, temporary_bytes=num_bytes, max_tiles=plan.vertices,
    )


def _zeros_set(target: Target, plan: SlicePlan) -> Vertices:
    """Return the set that fills in what partial results begin with."""
    table, width = plan.tables * plan.lines * plan.rows, target.vector_width(PARTIAL_BYTES)
    return Vertices(
        FILL, plan.vertices, lambda count: {"elements": table, "vector_width": width, "element_bytes": PARTIAL_BYTES},
        temporary_bytes=table * PARTIAL_BYTES, max_tiles=plan.vertices,
    )


def _sum_sets(plan: SlicePlan) -> list[tuple[int, Vertices]]:
    """Return the sets that join partial results, and what was there before, with their levels."""
    table = plan.lines * plan.rows
    last = (1, _sum_set(plan, ceil_div(table, plan.lookup_parts), plan.groups, plan.access.element_bytes))
    if plan.groups == 1:
        return [(1, _sum_set(plan, ceil_div(table, plan.lookup_parts), plan.group, plan.access.element_bytes))]
    return [(0, _sum_set(plan, ceil_div(table, plan.group), plan.group, 0)), last]


def _sum_set(plan: SlicePlan, elements: int, partials: int, base_bytes: int) -> Vertices:
    num_bytes = elements * (partials * plan.tables * PARTIAL_BYTES + base_bytes)
    work = {
        "elements": plan.tables * elements, "partials": partials, "vector_width": GRAIN_BYTES // PARTIAL_BYTES,
        "element_bytes": PARTIAL_BYTES,
    }
    return Vertices(
        SUM_OF_TABLES if plan.sums_whole_rows else SUM_OF_SLICES, plan.vertices, lambda count: work,
        gathered_bytes=num_bytes, fragments=partials * plan.tables, temporary_bytes=num_bytes, max_tiles=plan.vertices,
    )
