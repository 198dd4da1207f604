"""Device lowerings that op families share: cycle formulas of simple codelets, and compute sets of common shapes.

Formulas are those of the poplibs estimators and of measurements on silicon, restated in ``ipu_hardware.md`` section 2.
Sizes go from a compute set to a cycle formula by these names:

    elements      elements on the busiest tile
    vector_width  elements of one 64-bit access: 4 halves or 2 floats
    partials      values reduced into one
    rows          pieces handled one after another
    bytes         bytes moved
    element_bytes bytes of one element
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.spec import Codelet, Lowering, Vertices
from torchipu.target import Target

Work = Mapping[str, int]
MIN_BYTES_PER_TILE = 128  # least share of a linearly mapped variable; poplibs, ipu_hardware.md 3.3
REDUCTION_GRAIN = 8  # partial sums stay in groups of this many outputs; poplibs, ipu_hardware.md 3.4


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the quotient rounded up."""
    return -(-numerator // denominator)


def busiest_elements(
    target: Target, elements: int, grain: int = 1, element_bytes: int | None = None, max_tiles: int | None = None,
) -> int:
    """Return how many elements the busiest tile holds when they are spread linearly.

    Args:
        target: The machine.
        elements: Elements in all.
        grain: Elements that stay together.
        element_bytes: With it, a tile gets 128 bytes at least, as storage does; without, a grain at least.
        max_tiles: Tiles used at most.
    """
    least = ceil_div(MIN_BYTES_PER_TILE, element_bytes) if element_bytes else grain
    grains = ceil_div(elements, grain)
    tiles = max(1, min(max_tiles or target.num_tiles, target.num_tiles, grains // max(1, ceil_div(least, grain))))
    return min(elements, ceil_div(grains, tiles) * grain)


# --------------------------------------------------------------------------- codelets
def vector_codelet(
    name: str, half: float, single: float, *, supervisor: int = 11, worker_half: int = 26, worker_single: int = 29,
    code_bytes: int = 258, source: str = "poplibs estimator, ipu_hardware.md 2.3",
) -> Codelet:
    """Return a codelet that steps through 64-bit vectors: ``supervisor + 6 (worker + c ceil(n / 6v))`` cycles.

    Args:
        name: Poplibs-like name.
        half: Cycles of a vector of four halves (also of smaller types).
        single: Cycles of a vector of two floats or words.
        supervisor: Cycles before the workers start.
        worker_half: Fixed cycles of a worker on halves.
        worker_single: Fixed cycles of a worker on floats.
        code_bytes: Bytes of code.
        source: Where the numbers come from.
    """

    def cycles(target: Target, work: Work) -> int:
        width = work["vector_width"]
        per_vector, fixed = (half, worker_half) if width >= 4 else (single, worker_single)
        vectors = ceil_div(work["elements"], target.num_workers * width)
        return supervisor + target.num_workers * (fixed + int(per_vector * vectors))

    return Codelet(name, cycles, code_bytes, source)


def element_codelet(
    name: str, half: float, single: float, *, supervisor: int = 20, worker: int = 30, code_bytes: int = 400,
    source: str = "poplibs estimator, ipu_hardware.md 2.3",
) -> Codelet:
    """Return a codelet that steps through single elements: ``supervisor + 6 (worker + c ceil(n / 6))`` cycles.

    Args:
        name: Poplibs-like name.
        half: Cycles of a half element.
        single: Cycles of a float element.
        supervisor: Cycles before the workers start.
        worker: Fixed cycles of a worker.
        code_bytes: Bytes of code.
        source: Where the numbers come from.
    """

    def cycles(target: Target, work: Work) -> int:
        per_element = half if work["vector_width"] >= 4 else single
        return supervisor + target.num_workers * (
            worker + int(per_element * ceil_div(work["elements"], target.num_workers))
        )

    return Codelet(name, cycles, code_bytes, source)


def reduction_codelet(
    name: str, *, code_bytes: int = 600, source: str = "poplibs estimator, ipu_hardware.md 2.2 and 2.4",
) -> Codelet:
    """Return a codelet that reduces ``partials`` values into each of ``elements`` results.

    Many results: ``33 + 6 (20 + (2 P + 8) ceil(n / 6 a))``, with an accumulator of a = 4 floats or 8 halves. One or a
    few results: the workers share the partials, and a last step joins their six values.
    """

    def cycles(target: Target, work: Work) -> int:
        workers, width = target.num_workers, work["vector_width"]
        results, partials = work["elements"], work["partials"]
        strided = workers * (20 + (2 * partials + 8) * ceil_div(results, workers * 2 * width))
        # Along the partials, one vector a cycle; six workers take rows, or shares of one row where rows are few.
        shares = max(1, workers // max(1, results))
        rows = ceil_div(results, max(1, workers // shares))
        contiguous = workers * (24 + rows * (17 + ceil_div(partials, shares * width))) + (40 if shares > 1 else 0)
        return 33 + min(strided, contiguous)

    return Codelet(name, cycles, code_bytes, source)


def _copy_cycles(target: Target, work: Work) -> int:
    """Local copy: 8 bytes a cycle for long pieces; fitted cycles a byte for scattered elements."""
    per_byte = 1 / 8 if work.get("rows", 1) <= 1 else {1: 5.15, 2: 5.15, 4: 3.125}.get(work["element_bytes"], 0.44)
    fixed = 40 if work.get("rows", 1) <= 1 else 587
    return fixed + int(per_byte * work["bytes"])


def _fill_cycles(target: Target, work: Work) -> int:
    """Fill: a vector a cycle of each worker."""
    return 11 + target.num_workers * (25 + ceil_div(work["elements"], target.num_workers * work["vector_width"]))


def _slice_cycles(target: Target, work: Work) -> int:
    """Dynamic slice or gather of ``rows`` rows of ``elements / rows`` elements."""
    rows = max(1, work["rows"])
    row_bytes = ceil_div(work["elements"], rows) * work["element_bytes"]
    return 25 + target.num_workers * (30 + ceil_div(rows, target.num_workers) * (19 + 2 * ceil_div(row_bytes, 8)))


def _update_add_cycles(target: Target, work: Work) -> int:
    """Scatter-add of ``rows`` rows; sub-word elements cost about 20 cycles each."""
    rows = max(1, work["rows"])
    row_elements = ceil_div(work["elements"], rows)
    per_row = 12 + (20 * row_elements if work["element_bytes"] < 4 and row_elements % 2 else 3 * row_elements)
    return 25 + target.num_workers * (32 + ceil_div(rows, target.num_workers) * (per_row + 5))


COPY = Codelet("poplar::Copy", _copy_cycles, 120, "poplibs log, ipu_hardware.md 2.5")
STRIDED_COPY = Codelet("poplar::StridedCopy", _copy_cycles, 240, "poplibs log, ipu_hardware.md 2.5")
FILL = Codelet("popops::Fill", _fill_cycles, 120, "poplibs estimator, ipu_hardware.md 2.3")
CAST = vector_codelet("popops::Cast", 2, 2, supervisor=12, worker_half=18, worker_single=19, code_bytes=180)
MULTI_SLICE = Codelet("popops::MultiSlice", _slice_cycles, 420, "poplibs estimator, ipu_hardware.md 2.5")
MULTI_UPDATE_ADD = Codelet("popops::MultiUpdateAdd", _update_add_cycles, 480, "poplibs estimator, ipu_hardware.md 2.5")


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
    target: Target, codelet: Codelet, inputs: int, outputs: int, dtype: DType, partial_dtype: DType = DType.FLOAT,
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
    """
    outputs, inputs = max(1, outputs), max(1, inputs)
    partials = ceil_div(inputs, outputs)
    if outputs >= target.num_tiles:
        mine = busiest_elements(target, outputs)
        return (_reduction_set(target, codelet, outputs, partials, dtype, mine * partials * dtype.device_bytes),)
    held = busiest_elements(target, inputs, target.vector_width(dtype.device_bytes), dtype.device_bytes)
    tiles_per_output = max(1, min(ceil_div(partials, held), target.num_tiles // outputs))
    if tiles_per_output == 1:
        return (_reduction_set(target, codelet, outputs, partials, dtype, 0),)
    first = _reduction_set(target, codelet, outputs * tiles_per_output, ceil_div(partials, tiles_per_output), dtype, 0)
    sets, remaining = [first], tiles_per_output
    while remaining > 1:  # near-equal roots: below 48 partials one level is the cheapest
        fan_in = remaining if remaining <= 48 else ceil_div(remaining, max(2, int(remaining**0.5)))
        remaining = ceil_div(remaining, fan_in)
        sets.append(_reduction_set(
            target, codelet, outputs * remaining, fan_in, partial_dtype, fan_in * partial_dtype.device_bytes,
            fragments=fan_in,
        ))
    return tuple(sets)


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
    target: Target, codelet: Codelet, rows: int, row_elements: int, dtype: DType, *, table_rows: int = 0,
) -> Vertices:
    """Return a compute set that reads or updates rows of a table by index.

    Args:
        target: The machine.
        codelet: :data:`MULTI_SLICE` or :data:`MULTI_UPDATE_ADD`.
        rows: Rows looked up.
        row_elements: Elements of a row.
        dtype: Their type.
        table_rows: Rows of the table; every tile searches the part that it holds, so small tables are broadcast.
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


def linear_vertices(codelet: Codelet, *, grain: int | None = None, temporaries: int = 0) -> Lowering:
    """Return the lowering of an elementwise op: one compute set over the result, where the operands lie.

    Broadcast operands are gathered onto the tiles of the result. Operands of another dtype do not change the cost.

    Args:
        codelet: What runs.
        grain: Elements that stay together; None for the vector width.
        temporaries: Temporary values of the result's type for each element.
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
                temporary_bytes=temporaries * mine * element_bytes,
            ),
        )

    return lower


def reduction_vertices(codelet: Codelet, operand: str = "self") -> Lowering:
    """Return the lowering of a reduction of one operand to the first output.

    Args:
        codelet: Made by :func:`reduction_codelet`.
        operand: Schema name of the operand.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        source = op.operand(operand) or op.inputs[0]
        if source.num_elements == 0:
            return ()
        return reduction_sets(target, codelet, source.num_elements, op.outputs[0].num_elements, source.dtype)

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
            copy_set(target, result.num_elements, result.dtype, run_elements=run, moved=moved)
            for result in op.outputs if result.num_elements
        )

    return lower


def fill_vertices(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower an op that fills its result with a constant."""
    result = op.outputs[0]
    return (elementwise_set(target, FILL, result.num_elements, result.dtype),) if result.num_elements else ()


def chain_sets(
    target: Target, codelets: tuple[tuple[Codelet, str], ...], elements: int, rows: int, dtype: DType,
) -> tuple[Vertices, ...]:
    """Return a chain of compute sets over ``rows`` rows: maps over all elements, reductions to one value a row.

    A map that follows a reduction fetches the row values first.

    Args:
        target: The machine.
        codelets: ``(codelet, "map" | "reduce" | "rows")`` in order; ``rows`` maps over one value a row.
        elements: Elements in all.
        rows: Rows among them.
        dtype: Element type.
    """
    width = target.vector_width(dtype.device_bytes)
    mine = busiest_elements(target, elements, width, dtype.device_bytes)
    rows_here = ceil_div(mine * rows, max(1, elements)) + 1
    sets: list[Vertices] = []
    previous = "map"
    for codelet, form in codelets:
        if form == "reduce":
            sets += reduction_sets(target, codelet, elements, rows, dtype)
        elif form == "rows":
            sets.append(elementwise_set(target, codelet, rows, DType.FLOAT))
        else:
            fetched = rows_here if previous != "map" else 0
            sets.append(elementwise_set(target, codelet, elements, dtype, gathered_elements=fetched))
        previous = form
    return tuple(sets)
