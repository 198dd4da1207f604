"""Reductions along dimensions of a value that lies on the tiles in order: what each holds first, then across tiles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from math import isqrt, prod
from typing import cast

from torchipu.device.codelets import CAST, MIN_BYTES_PER_TILE, busiest_elements
from torchipu.device.compute_sets import elementwise_set, tiled_levels
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.reduction import Order, Reduction
from torchipu.device.tilings.stage import Stage, staged
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.codelet import Codelet, Lowering, Vertices
from torchipu.target import Target

RESULTS_TOGETHER = 8  # poplibs shares results out over tiles in such groups; ipu_hardware.md 3.4


@dataclass(frozen=True, slots=True)
class Box:
    """What each tile reduces of a value that lies on the tiles in row-major order.

    Attributes:
        order: Of the partials that the tiles make.
        fan: Elements that go into each.
        stretch: Elements of a row within which they are cut.
        together: Partials that a tile makes of a box, neighbours in memory.
        has_columns: Whether these are neighbours in the box too: it is reduced across, not along, what lies together.
        tiles: How many have a box.
    """

    order: Order
    fan: int
    stretch: int
    together: int
    has_columns: bool
    tiles: int


def box_of(target: Target, shape: Sequence[int], dims: Collection[int], element_bytes: int) -> Box:
    """Return the box that a tile holds: all of the inner dimensions, part of one, and one place of the outer ones.

    Args:
        target: The machine.
        shape: Of the value.
        dims: Those that are reduced.
        element_bytes: Of each element.
    """
    merged = _merged(shape, dims)
    tiles = max(1, min(target.num_tiles, prod(shape) * element_bytes // MIN_BYTES_PER_TILE))
    outer, cut = 1, 0
    while cut < len(merged) and outer * merged[cut][0] <= tiles:
        outer *= merged[cut][0]
        cut += 1
    inner = merged[cut + 1 :]
    kept, folded = (prod(size for size, reduced in inner if reduced is is_reduced) for is_reduced in (False, True))
    order, stretch = list(merged[:cut]), folded
    if cut < len(merged):
        size, is_reduced = merged[cut]
        if is_reduced:
            share = ceil_div(size, tiles // outer)
            order.append((ceil_div(size, share), True))
            folded, stretch = folded * share, folded * size
        else:
            order.append((size, False))
    order += [one for one in inner if not one[1]]
    has_columns = bool(inner) and not inner[-1][1]
    return Box(tuple(order), folded, stretch, kept, has_columns, tiles)


def _merged(shape: Sequence[int], dims: Collection[int]) -> list[tuple[int, bool]]:
    """Return sizes, and whether they are reduced: neighbours of a kind are one, those of size 1 are none."""
    sizes = [(size, dim in dims) for dim, size in enumerate(shape) if size != 1]
    groups = groupby(sizes, key=lambda one: one[1])
    return [(prod(size for size, _ in group), is_reduced) for is_reduced, group in groups]


def reduction_vertices(
    codelet: Codelet, dims: Callable[[Op, Tensor], Collection[int]],
    reduction: Callable[[Op], Reduction | None] | None = None, *, has_float_sums: bool = False,
    partial_dtype: DType | None = DType.FLOAT,
) -> Lowering:
    """Return the lowering of a reduction of one operand to the first output.

    Args:
        codelet: Made by :func:`reduction_codelet`.
        dims: Gives the dimensions that an op reduces.
        reduction: What is computed, for the tile machine.
        has_float_sums: Whether what halves are reduced to is float, and is cast behind: sums, not extremes.
        partial_dtype: Element type of partials; None for that of the result.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        source = op.inputs[0]
        if source.num_elements == 0:
            return ()
        result = op.outputs[0]
        partials = partial_dtype or result.dtype
        sets = reduced_along(target, codelet, source.shape, dims(op, source), source.dtype, partials, reduction)
        if has_float_sums and result.dtype is DType.HALF:
            # Vertices of the last level round to the result's type, as the cast does.
            cast_set = elementwise_set(target, CAST, max(1, result.num_elements), result.dtype)
            sets += (replace(cast_set, tiling=nothing_left if reduction else None),)
        return sets

    return lower


def reduced_along(
    target: Target, codelet: Codelet, shape: Sequence[int], dims: Collection[int], dtype: DType,
    partial_dtype: DType, reduction: Callable[[Op], Reduction | None] | None,
) -> tuple[Vertices, ...]:
    """Return the compute sets that reduce dimensions of a value.

    Each tile reduces the box that it holds; nothing is exchanged. Where several have some of a result, the results are
    shared out over tiles, 8 at a time, which fetch the partials: in one go where a result has less than
    ``2 sqrt(tiles)``, else with a level in between, near the root of how many there are.

    Args:
        target: The machine.
        codelet: Made by `reduction_codelet`.
        shape: Of the value.
        dims: Those that are reduced.
        dtype: Element type of the value.
        partial_dtype: Element type of partials.
        reduction: What is computed, for the tile machine.
    """
    box = box_of(target, shape, dims, dtype.device_bytes)
    length = prod(shape[dim] for dim in dims)
    rows = prod(shape) // length
    sets: list[Vertices] = []
    orders: list[Order] = []
    fans: list[int] = []
    sources, held, held_bytes = length, dtype, 0
    if box.fan > 1 or length == 1:
        sources, held = prod(size for size, is_reduced in box.order if is_reduced), partial_dtype
        held_bytes = box.together * partial_dtype.device_bytes if sources > 1 else 0
        # A sum of one element is none: popops casts it.
        sets.append(replace(_box_set(target, codelet if length > 1 else CAST, box, dtype), temporary_bytes=held_bytes))
        orders.append(box.order)
        fans.append(box.fan)
    while sources > 1:
        groups = _groups(target, sources, rows)
        fan = ceil_div(sources, groups)
        sources = ceil_div(sources, fan)
        fetched = fetched_set(target, codelet, sources * rows, fan, held)
        sets.append(replace(fetched, temporary_bytes=fetched.gathered_bytes + held_bytes))
        orders.append(((sources, True), (rows, False)) if sources > 1 else ((rows, False),))
        fans.append(fan)
        held, held_bytes = partial_dtype, 0
    return tiled_levels(sets, orders, fans, reduction, box.stretch if sets[0].gathered_bytes == 0 else None)


def reduced_whole(
    target: Target, codelet: Codelet, elements: int, dtype: DType,
    reduction: Callable[[Op], Reduction | None] | None = None,
) -> tuple[Vertices, ...]:
    """Return the compute sets that reduce all elements of a value to one, in floats.

    Args:
        target: The machine.
        codelet: Made by `reduction_codelet`.
        elements: Of the value.
        dtype: Their type.
        reduction: What is computed, for the tile machine.
    """
    return reduced_along(target, codelet, (elements,), (0,), dtype, DType.FLOAT, reduction)


def chain_sets(
    target: Target, codelets: tuple[tuple[Codelet, str], ...], shape: Sequence[int], dims: Collection[int],
    dtype: DType, computed: Sequence[Callable[[Op], Reduction | Stage | None]] = (),
) -> tuple[Vertices, ...]:
    """Return a chain of compute sets over rows: maps over all elements, reductions to one value a row.

    A map that follows a reduction fetches the row values first.

    Args:
        target: The machine.
        codelets: ``(codelet, "map" | "reduce" | "rows")`` in order; ``rows`` maps over one value a row.
        shape: Of the elements.
        dims: Dimensions that a row goes along.
        dtype: Element type.
        computed: What each codelet computes: a `Reduction`, or a `Stage` of elements or rows; none leaves the op
            without vertices.
    """
    elements, rows = prod(shape), prod(size for dim, size in enumerate(shape) if dim not in dims)
    width = target.vector_width(dtype.device_bytes)
    mine = busiest_elements(target, elements, width, dtype.device_bytes)
    rows_here = ceil_div(mine * rows, max(1, elements)) + 1
    sets: list[Vertices] = []
    previous = "map"
    for (codelet, form), step in zip_longest(codelets, computed):
        tiling = staged(cast("Callable[[Op], Stage | None]", step)) if step else None
        if form == "reduce":
            reduction = cast("Callable[[Op], Reduction | None] | None", step)
            sets += reduced_along(target, codelet, shape, dims, dtype, DType.FLOAT, reduction)
        elif form == "rows":
            sets.append(replace(elementwise_set(target, codelet, rows, DType.FLOAT), tiling=tiling))
        else:
            fetched = rows_here if previous != "map" else 0
            made = elementwise_set(target, codelet, elements, dtype, gathered_elements=fetched)
            sets.append(replace(made, tiling=tiling))
        previous = form
    return tuple(sets)


def _groups(target: Target, sources: int, rows: int) -> int:
    """Return into how many the sources of each result are joined in the next level."""
    tiles_a_group = ceil_div(rows, RESULTS_TOGETHER)
    if sources * sources < 4 * target.num_tiles or 2 * tiles_a_group > target.num_tiles:
        return 1
    return min(isqrt(sources - 1) + 1, target.num_tiles // tiles_a_group)


def _box_set(target: Target, codelet: Codelet, box: Box, dtype: DType) -> Vertices:
    fixed = {
        "partials": box.fan, "vector_width": target.vector_width(dtype.device_bytes),
        "element_bytes": dtype.device_bytes, "is_strided": int(box.has_columns),
    }
    elements = prod(size for size, _ in box.order)
    return Vertices(
        codelet, elements, lambda count: {"elements": count, **fixed}, grain=box.together, max_tiles=box.tiles,
    )


def fetched_set(target: Target, codelet: Codelet, elements: int, fan: int, dtype: DType) -> Vertices:
    """Return the set of vertices that fetch what they reduce: of each source, results beside each other.

    Args:
        target: The machine.
        codelet: Made by `reduction_codelet`.
        elements: Results.
        fan: Sources of each.
        dtype: Of what is fetched.
    """
    fixed = {
        "partials": fan, "vector_width": target.vector_width(dtype.device_bytes), "element_bytes": dtype.device_bytes,
    }
    num_bytes = busiest_elements(target, elements, RESULTS_TOGETHER) * fan * dtype.device_bytes
    return Vertices(
        codelet, elements, lambda count: {"elements": count, **fixed}, grain=RESULTS_TOGETHER,
        gathered_bytes=num_bytes, fragments=fan,
    )
