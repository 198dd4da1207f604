"""Compute sets that find something in whole rows: ranks, places in sorted rows, and counts of bins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from torchipu.device.tilings.reduction import Reduction, add_up, rows_along, shared_out
from torchipu.device.tilings.stage import Taken, result
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, code_of, local, one_a_run

COUNTS = "counts"
"""Partials: how many elements of a stretch lie in each bin."""


# --------------------------------------------------------------------------- ranks
def row_by_row(split: Callable[[Op], tuple[int, int, int]]) -> Tiling:
    """Return the tiling of an op of one operand that finds an element of each row of it: the op itself, on some rows.

    Args:
        split: Gives the sizes before, of and after the dimension that the op goes along; an op without a dimension has
            one row.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        table = rows_along(split(op))
        rows, length = table.shape
        tiles, begin, end = one_a_run(shared_out(runs, rows))

        def code(sizes: Sizes) -> Graph:
            if "dim" not in op.attrs:
                whole = tuple(local(tensor) for tensor in op.outputs)
                return code_of(replace(op, inputs=(local(op.inputs[0], length),), outputs=whole))
            made = tuple(local(tensor, sizes[0], 1) for tensor in op.outputs)
            keeps: dict[str, object] = {"keepdim": True} if "keepdim" in op.attrs else {}
            inputs = (local(op.inputs[0], sizes[0], length),)
            return code_of(replace(op, inputs=inputs, outputs=made, attrs={**op.attrs, "dim": 1, **keeps}))

        read = listed(operand_labels(op)[0], table.reshape(-1), (end - begin) * length)
        names = ("out" if number == 0 else f"out{number}" for number in range(len(op.outputs)))
        writes = tuple(ranges(name, begin, end) for name in names)
        return VertexSet(tiles, (read,), writes, (end - begin).reshape(-1, 1), code)

    return tiling


# --------------------------------------------------------------------------- places in sorted rows
def in_sorted(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return the vertices of a search: some values each, all of one row, and the row in which they are looked for.

    Args:
        op: The search.
        runs: Of the result.
        part: The only one.
    """
    tiles, begin, end = one_a_run(runs)
    labels = dict(zip(operand_labels(op), op.inputs, strict=True))
    row_of = next(label for label in labels if label in ("sorted_sequence", "boundaries"))
    shape = labels[row_of].shape
    length = shape[-1] if shape else 1
    if len(shape) > 1:  # each row has as many values
        per_row = op.outputs[0].shape[-1]
        borders = np.unique(np.concatenate((begin, end, np.arange(0, op.outputs[0].num_elements, per_row))))
        tiles = tiles[np.searchsorted(begin, borders[:-1], side="right") - 1]
        begin, end = borders[:-1], borders[1:]
        row = begin // per_row
    else:
        row = np.zeros_like(begin)
    reads = [
        ranges(label, begin, end) if label == "self" else ranges(label, row * length, (row + 1) * length)
        for label in labels
    ]

    def code(sizes: Sizes) -> Graph:
        count = sizes[0]
        inputs = tuple(local(one, count if label == "self" else length) for label, one in labels.items())
        made = local(op.outputs[0], *(sizes if "self" in labels else ()))
        return code_of(replace(op, inputs=inputs, outputs=(made,)))

    return VertexSet(tiles, tuple(reads), (ranges("out", begin, end),), (end - begin).reshape(-1, 1), code)


# --------------------------------------------------------------------------- counts of bins
def counted(stretches: int) -> Tiling:
    """Return the tiling of the first set of a histogram with known edges: a vertex counts a stretch of elements.

    Args:
        stretches: How many there are.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        source, bins = op.inputs[0], op.outputs[0].num_elements
        run_tiles, _, _ = one_a_run(runs)
        number = np.arange(stretches, dtype=np.int64)
        begin, end = number * source.num_elements // stretches, (number + 1) * source.num_elements // stretches

        def code(sizes: Sizes) -> Graph:
            made = Tensor("counts", (bins,), DType.FLOAT)
            return code_of(replace(op, inputs=(local(source, sizes[0]),), outputs=(made,)))

        return VertexSet(
            run_tiles[number * len(run_tiles) // stretches], (ranges("self", begin, end),),
            (ranges(COUNTS, number * bins, (number + 1) * bins, DType.FLOAT),), (end - begin).reshape(-1, 1), code,
        )

    return tiling


def of_stretches(stretches: int) -> Callable[[Op], Reduction]:
    """Return the sums of what ``counted`` makes."""

    def reduction(op: Op) -> Reduction:
        bins = op.outputs[0].num_elements
        table = np.arange(stretches * bins, dtype=np.int64).reshape(stretches, bins).T
        read = Taken(COUNTS, DType.FLOAT, is_partial=True)
        return Reduction(table, (read,), (result(op),), add_up, add_up)

    return reduction
