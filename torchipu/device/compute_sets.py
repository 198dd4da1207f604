"""Compute sets of common shapes, which the device halves of op families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import cast

from torchipu.device.codelets import COPY, FILL, STRIDED_COPY, Work, busiest_elements
from torchipu.device.tilings.moves import moved as moved_elements
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.pointwise import is_pointwise, pointwise
from torchipu.device.tilings.reduction import Level, Order, Reduction, reducing, rows_of_pieces
from torchipu.device.tilings.stage import Stage, staged
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ir.vertices import Tiling
from torchipu.optable.codelet import Codelet, Lowering, Vertices
from torchipu.target import Target


# --------------------------------------------------------------------------- compute sets by size
def elementwise_set(
    target: Target, codelet: Codelet, elements: int, dtype: DType, *, gathered_elements: int = 0, fragments: int = 1,
    temporary_bytes: int = 0, extra: Work | None = None,
) -> Vertices:
    """Return one compute set over elements that are spread linearly, a vector at a time.

    Args:
        target: The machine.
        codelet: What runs on each vector.
        elements: Elements in all.
        dtype: Decides the vector width.
        gathered_elements: Elements of ``dtype`` that the busiest tile must fetch first.
        fragments: Contiguous pieces among them.
        temporary_bytes: Bytes a tile needs while the set runs.
        extra: Further sizes for the codelet's formula.
    """
    width = target.vector_width(dtype.device_bytes)
    fixed = {"vector_width": width, "element_bytes": dtype.device_bytes, **(extra or {})}
    return Vertices(
        codelet, elements, lambda count: {"elements": count, **fixed}, grain=width,
        gathered_bytes=gathered_elements * dtype.device_bytes, fragments=fragments, temporary_bytes=temporary_bytes,
    )


def reduction_sets(
    target: Target, codelet: Codelet, inputs: int, outputs: int, dtype: DType, partial_dtype: DType = DType.FLOAT, *,
    reduction: Callable[[Op], Reduction | None] | None = None,
) -> tuple[Vertices, ...]:
    """Return the compute sets that reduce ``inputs`` values to ``outputs``: on the tiles that hold them, then across.

    Enough outputs for all tiles: one set, each tile reduces its own after an exchange. Otherwise each tile reduces
    what it holds, and a second set joins the partials; with very many partials the join itself has two levels.

    Args:
        target: The machine.
        codelet: Made by :func:`reduction_codelet`.
        inputs: Values in all.
        outputs: Results in all.
        dtype: Element type of the values.
        partial_dtype: Element type of the partials.
        reduction: What is computed, for the tile machine.
    """
    outputs, inputs = max(1, outputs), max(1, inputs)
    partials = ceil_div(inputs, outputs)
    if outputs >= target.num_tiles:
        mine = busiest_elements(target, outputs)
        gathered = mine * partials * dtype.device_bytes
        whole = _reduction_set(target, codelet, outputs, partials, dtype, gathered)
        return tiled_levels([whole], (((outputs, False),),), (partials,), reduction)
    held = busiest_elements(target, inputs, target.vector_width(dtype.device_bytes), dtype.device_bytes)
    tiles_per_output = max(1, min(ceil_div(partials, held), target.num_tiles // outputs))
    if tiles_per_output == 1:
        whole = _reduction_set(target, codelet, outputs, partials, dtype, 0)
        return tiled_levels([whole], (((outputs, False),),), (partials,), reduction)
    each = ceil_div(partials, tiles_per_output)
    tiles_per_output = ceil_div(partials, each)  # those that have any
    first = _reduction_set(target, codelet, outputs * tiles_per_output, each, dtype, 0)
    sets, fans, remaining = [first], [each], tiles_per_output
    orders = [rows_of_pieces(outputs, remaining)]
    while remaining > 1:  # near-equal roots: below 48 partials one level is the cheapest
        fan_in = remaining if remaining <= 48 else ceil_div(remaining, max(2, int(remaining**0.5)))
        remaining = ceil_div(remaining, fan_in)
        sets.append(_reduction_set(
            target, codelet, outputs * remaining, fan_in, partial_dtype, fan_in * partial_dtype.device_bytes,
            fragments=fan_in,
        ))
        fans.append(fan_in)
        orders.append(rows_of_pieces(outputs, remaining))
    return tiled_levels(sets, orders, fans, reduction)


def tiled_levels(
    sets: Sequence[Vertices], orders: Sequence[Order], fans: Sequence[int],
    reduction: Callable[[Op], Reduction | None] | None, stretch: int | None = None,
) -> tuple[Vertices, ...]:
    """Return the sets of a reduction with their tilings.

    Args:
        sets: Level by level.
        orders: Of what each of them makes.
        fans: How many values each level makes one.
        reduction: What is computed, if the tile machine is to know.
        stretch: See `Level`.
    """
    if reduction is None:
        return tuple(sets)
    shared = tuple(orders), tuple(fans), stretch
    return tuple(replace(one, tiling=reducing(reduction, Level(number, *shared))) for number, one in enumerate(sets))


def _reduction_set(
    target: Target, codelet: Codelet, results: int, partials: int, dtype: DType, gathered_bytes: int,
    fragments: int = 1,
) -> Vertices:
    fixed = {
        "partials": partials, "vector_width": target.vector_width(dtype.device_bytes),
        "element_bytes": dtype.device_bytes,
    }
    return Vertices(
        codelet, results, lambda count: {"elements": count, **fixed}, gathered_bytes=gathered_bytes,
        fragments=fragments, temporary_bytes=gathered_bytes,
    )


def copy_set(
    target: Target, elements: int, dtype: DType, *, run_elements: int | None = None, moved: bool = True,
) -> Vertices:
    """Return a compute set that lays elements out anew: an exchange, then a local copy.

    Args:
        target: The machine.
        elements: Elements in all.
        dtype: Their type.
        run_elements: Elements that stay neighbours; 1 for a transpose. None: everything stays in order.
        moved: Whether the elements come from other tiles.
    """
    mine = busiest_elements(target, elements, target.vector_width(dtype.device_bytes), dtype.device_bytes)
    rows = 1 if run_elements is None else max(1, ceil_div(mine, run_elements))
    fixed = {"element_bytes": dtype.device_bytes, "rows": rows}
    scattered = rows > 1 and (run_elements or 1) * dtype.device_bytes < 8
    # An exchange moves words: what is scattered below a word travels with its neighbours and is picked apart locally.
    fragments = min(rows, max(1, int(mine**0.5))) if scattered else rows
    return Vertices(
        STRIDED_COPY if rows > 1 else COPY, elements,
        lambda count: {**fixed, "bytes": count * dtype.device_bytes, "elements": count},
        grain=target.vector_width(dtype.device_bytes), gathered_bytes=mine * dtype.device_bytes if moved else 0,
        fragments=fragments, temporary_bytes=mine * dtype.device_bytes if scattered else 0,
    )


def gather_set(
    target: Target, codelet: Codelet, rows: int, row_elements: int, dtype: DType,
) -> Vertices:
    """Return a compute set that reads or updates rows of a table by index, of which each tile has whole columns.

    Args:
        target: The machine.
        codelet: :data:`MULTI_SLICE` or :data:`MULTI_UPDATE_ADD`.
        rows: Rows looked up.
        row_elements: Elements of a row.
        dtype: Their type.
    """
    mine = busiest_elements(target, rows * row_elements, max(1, row_elements), dtype.device_bytes)
    mine_rows = max(1, mine // max(1, row_elements))
    fixed = {"element_bytes": dtype.device_bytes, "vector_width": target.vector_width(dtype.device_bytes)}
    return Vertices(
        codelet, rows * row_elements,
        lambda count: {"elements": count, "rows": max(1, count // max(1, row_elements)), **fixed},
        grain=max(1, row_elements), gathered_bytes=mine * dtype.device_bytes + 4 * mine_rows,
        fragments=mine_rows + 1, temporary_bytes=mine * dtype.device_bytes + 4 * mine_rows,
    )


# --------------------------------------------------------------------------- vertices
GATHERED_SHARE = 0.6
"""Part of a tile's memory that vertices may gather operands into; the rest is for what lies there."""


def fits_tile(target: Target, num_bytes: int) -> bool:
    """Whether a vertex may gather so much."""
    return num_bytes <= GATHERED_SHARE * target.tile_memory_bytes


def in_first(sets: Sequence[Vertices], tiling: Tiling | None) -> tuple[Vertices, ...]:
    """Return compute sets of which the vertices of the first do all there is to do.

    Args:
        sets: Of an op.
        tiling: Of the first; None leaves the op without vertices.
    """
    return tuple(
        replace(one, tiling=tiling if tiling is None or not number else nothing_left) for number, one in enumerate(sets)
    )


# --------------------------------------------------------------------------- lowerings of whole ops
def no_vertices(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower a view: nothing runs."""
    return ()


def broadcast_elements(op: Op, target: Target, result: Tensor) -> int:
    """Return how many operand elements the busiest tile must fetch because they are broadcast or lie elsewhere."""
    width = target.vector_width(result.dtype.device_bytes)
    mine = busiest_elements(target, result.num_elements, width, result.dtype.device_bytes)
    fetched = [min(mine, t.num_elements) for t in op.inputs if 1 < t.num_elements < result.num_elements]
    return sum(fetched)


def linear_vertices(
    codelet: Codelet, *, grain: int | None = None, temporaries: int = 0, tiling: Tiling | None = None,
) -> Lowering:
    """Return the lowering of an elementwise op: one compute set over the result, where the operands lie.

    Broadcast operands are gathered onto the tiles of the result. Operands of another dtype do not change the cost.

    Args:
        codelet: What runs.
        grain: Elements that stay together; None for the vector width.
        temporaries: Temporary values of the result's type for each element.
        tiling: Of ops that are not `pointwise`.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result = op.outputs[0]
        if result.num_elements == 0:
            return ()
        element_bytes = result.dtype.device_bytes
        width = target.vector_width(max([element_bytes, *(t.dtype.device_bytes for t in op.inputs)]))
        together = grain or target.vector_width(element_bytes)
        fixed = {"vector_width": width, "element_bytes": element_bytes}
        mine = busiest_elements(target, result.num_elements, together, element_bytes)
        return (
            Vertices(
                codelet, result.num_elements, lambda count: {"elements": count, **fixed}, grain=together,
                gathered_bytes=broadcast_elements(op, target, result) * element_bytes,
                temporary_bytes=temporaries * mine * element_bytes, tiling=pointwise if is_pointwise(op) else tiling,
            ),
        )

    return lower


def copy_vertices(run_elements: Callable[[Op], int | None] | None = None, *, moved: bool = True) -> Lowering:
    """Return the lowering of pure data movement (clone, cat, pad, permute made contiguous).

    Args:
        run_elements: Tells how many elements stay neighbours; None for everything in order.
        moved: Whether elements change tile.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        run = run_elements(op) if run_elements else None
        return tuple(
            replace(
                copy_set(target, result.num_elements, result.dtype, run_elements=run, moved=moved),
                tiling=partial(moved_elements, result=place),
            )
            for place, result in enumerate(op.outputs) if result.num_elements
        )

    return lower


def fill_vertices(tiling: Tiling | None) -> Lowering:
    """Return the lowering of an op that fills its result with values that it reads nowhere.

    Args:
        tiling: Of the vertices.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result = op.outputs[0]
        if result.num_elements == 0:
            return ()
        return (replace(elementwise_set(target, FILL, result.num_elements, result.dtype), tiling=tiling),)

    return lower


def chain_sets(
    target: Target, codelets: tuple[tuple[Codelet, str], ...], elements: int, rows: int, dtype: DType,
    computed: Sequence[Callable[[Op], Reduction | Stage | None]] = (),
) -> tuple[Vertices, ...]:
    """Return a chain of compute sets over ``rows`` rows: maps over all elements, reductions to one value a row.

    A map that follows a reduction fetches the row values first.

    Args:
        target: The machine.
        codelets: ``(codelet, "map" | "reduce" | "rows")`` in order; ``rows`` maps over one value a row.
        elements: Elements in all.
        rows: Rows among them.
        dtype: Element type.
        computed: What each codelet computes: a `Reduction`, or a `Stage` of elements or rows; none leaves the op
            without vertices.
    """
    width = target.vector_width(dtype.device_bytes)
    mine = busiest_elements(target, elements, width, dtype.device_bytes)
    rows_here = ceil_div(mine * rows, max(1, elements)) + 1
    sets: list[Vertices] = []
    previous = "map"
    for (codelet, form), step in zip_longest(codelets, computed):
        tiling = staged(cast("Callable[[Op], Stage | None]", step)) if step else None
        if form == "reduce":
            reduction = cast("Callable[[Op], Reduction | None] | None", step)
            sets += reduction_sets(target, codelet, elements, rows, dtype, reduction=reduction)
        elif form == "rows":
            sets.append(replace(elementwise_set(target, codelet, rows, DType.FLOAT), tiling=tiling))
        else:
            fetched = rows_here if previous != "map" else 0
            made = elementwise_set(target, codelet, elements, dtype, gathered_elements=fetched)
            sets.append(replace(made, tiling=tiling))
        previous = form
    return tuple(sets)
