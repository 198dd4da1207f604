"""Compute sets of common shapes, which the device halves of op families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torchipu.device.codelets import COPY, FILL, STRIDED_COPY, Work, busiest_elements
from torchipu.device.tilings.moves import moved as moved_elements
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.pointwise import is_pointwise, pointwise
from torchipu.device.tilings.reduction import Level, Order, Reduction, reducing
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
