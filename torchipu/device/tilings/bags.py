"""Bags of embeddings and their gradients: a vertex has some columns of the table, and all indices.

As look-ups of rows, for the rows that an index names are known only when it runs; see ``lines``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import PAD, Numbers, Region, everything, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, local, one_a_run

PRODUCTS = "products"
"""Partials: for each index the sum over some columns of what it takes and its gradient."""


def columns(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return the vertices of an op whose columns are computed apart: the op itself, on some of them.

    Args:
        op: A bag, or its gradient to the table. Results that have no columns are those of ``told``.
        runs: Of the rows that are taken.
        part: The only one.
    """
    width = op.outputs[0].shape[-1]
    tiles, begin, end = _shares(runs, width)
    distinct = _distinct(op)
    reads = [_region(label, tensor, width, begin, end) for tensor, label in distinct.items()]
    numbers = [
        number for number, tensor in enumerate(op.outputs) if tensor.num_elements and _has_columns(tensor, width)
    ]
    writes = [
        _region("out" if number == 0 else f"out{number}", op.outputs[number], width, begin, end) for number in numbers
    ]

    def code(sizes: Sizes) -> Graph:
        parts = {tensor: _part(tensor, label, width, sizes[0]) for tensor, label in distinct.items()}
        made = tuple(_part(tensor, f"made{number}", width, sizes[0]) for number, tensor in enumerate(op.outputs))
        inner = replace(op, inputs=tuple(parts[tensor] for tensor in op.inputs), outputs=made)
        return Graph("vertex", tuple(parts.values()), tuple(made[number] for number in numbers), (inner,))

    return VertexSet(tiles, tuple(reads), tuple(writes), (end - begin).reshape(-1, 1), code)


def told(op: Op, runs: TileMapping, part: int = 0) -> VertexSet | None:
    """Return the vertex of the results of a bag that have no columns: which bag each index is in, and their sizes.

    Args:
        op: The bag.
        runs: Of the rows that are taken.
        part: The only one.
    """
    table = op.needed("weight")
    width = table.shape[1]
    numbers = [
        number for number, tensor in enumerate(op.outputs) if tensor.num_elements and not _has_columns(tensor, width)
    ]
    if not numbers:
        return None
    distinct = {tensor: label for tensor, label in _distinct(op).items() if label != "weight"}

    def code(sizes: Sizes) -> Graph:
        written = Code()
        zeros = written.full(0.0, table.dtype, table.shape[0], 1)  # nothing of the table is needed
        parts = {tensor: _part(tensor, label, width, 1) for tensor, label in distinct.items()} | {table: zeros}
        made = tuple(_part(tensor, f"made{number}", width, 1) for number, tensor in enumerate(op.outputs))
        inner = replace(op, inputs=tuple(parts[tensor] for tensor in op.inputs), outputs=made)
        given = tuple(parts[tensor] for tensor in distinct)
        return Graph("vertex", given, tuple(made[number] for number in numbers), (*written.ops, inner))

    reads = tuple(everything(label, tensor.num_elements, 1) for tensor, label in distinct.items())
    writes = tuple(everything(f"out{number}", op.outputs[number].num_elements, 1) for number in numbers)
    return VertexSet(one_a_run(runs)[0][:1], reads, writes, np.zeros((1, 0), np.int64), code)


def _distinct(op: Op) -> dict[Tensor, str]:
    labels = operand_labels(op)
    return {tensor: label for label, tensor in reversed(list(zip(labels, op.inputs, strict=True)))}


def _has_columns(tensor: Tensor, width: int) -> bool:
    """Whether an operand or a result has columns as wide as the table's."""
    return len(tensor.shape) == 2 and tensor.shape[1] == width


def _shares(runs: TileMapping, elements: int, count: int | None = None) -> tuple[Numbers, Numbers, Numbers]:
    """Return tile, first element and that after the last one of each vertex; None for as many as there are runs."""
    tiles, _, _ = one_a_run(runs)
    count = min(elements, len(tiles)) if count is None else count
    number = np.arange(count, dtype=np.int64)
    return tiles[number * len(tiles) // count], number * elements // count, (number + 1) * elements // count


def _region(name: str, tensor: Tensor, width: int, begin: Numbers, end: Numbers) -> Region:
    if not _has_columns(tensor, width):
        return everything(name, tensor.num_elements, len(begin))
    return _columns_of(name, tensor.shape[0], width, begin, end)


def _columns_of(name: str, rows: int, width: int, begin: Numbers, end: Numbers) -> Region:
    """Return some columns of a matrix, one row behind the other."""
    count = len(begin)
    starts = (np.arange(rows, dtype=np.int64) * width + begin[:, None]).reshape(-1)
    sizes = np.repeat(end - begin, rows)
    first = np.arange(count + 1, dtype=np.int64) * rows
    return Region(name, starts, sizes, np.ones_like(starts), first)


def _part(tensor: Tensor, name: str, width: int, count: int) -> Tensor:
    """Return what stands for so many columns of a tensor, or for all of it where it has none."""
    shape = (tensor.shape[0], count) if _has_columns(tensor, width) else tensor.shape
    return local(tensor, *shape, name=name)


# --------------------------------------------------------------------------- gradients of the weights of samples
def weights_gradient(tiles: int) -> tuple[Tiling, Tiling]:
    """Return the tilings of sums over columns: products of some columns by the op itself, then the sums of all.

    Args:
        tiles: Vertices of the first set, at most.
    """

    def multiplied(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        table, result = op.needed("weight"), op.outputs[0]
        width, count = table.shape[1], min(tiles, table.shape[1])
        at, begin, end = _shares(runs, width, count)
        distinct = _distinct(op)
        reads = tuple(_region(label, tensor, width, begin, end) for tensor, label in distinct.items())

        def code(sizes: Sizes) -> Graph:
            parts = {tensor: _part(tensor, label, width, sizes[0]) for tensor, label in distinct.items()}
            made = Tensor("products", result.shape, DType.FLOAT)
            inner = replace(op, inputs=tuple(parts[tensor] for tensor in op.inputs), outputs=(made,))
            return Graph("vertex", tuple(parts.values()), (made,), (inner,))

        number = np.arange(count + 1, dtype=np.int64) * result.num_elements
        writes = (ranges(PRODUCTS, number[:-1], number[1:], DType.FLOAT),)
        return VertexSet(at, reads, writes, (end - begin).reshape(-1, 1), code)

    def added(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        result = op.outputs[0]
        count = min(tiles, op.needed("weight").shape[1])
        at, begin, end = _shares(runs, result.num_elements)
        column = np.arange(count, dtype=np.int64)[None] * result.num_elements
        elements = np.concatenate([
            (np.arange(b, e)[:, None] + column).reshape(-1) for b, e in zip(begin.tolist(), end.tolist(), strict=True)
        ])

        def code(sizes: Sizes) -> Graph:
            written = Code()
            return written.graph([written.summed(written.given(DType.FLOAT, sizes[0], count), result.dtype)])

        read = listed(PRODUCTS, elements, (end - begin) * count, DType.FLOAT)
        return VertexSet(at, (read,), (ranges("out", begin, end),), (end - begin).reshape(-1, 1), code)

    return multiplied, added


# --------------------------------------------------------------------------- rows of a bounded norm
def renormed(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return the vertices that scale rows which an index names: some rows each, and the whole index.

    Args:
        op: The op.
        runs: Of the rows that are named.
        part: The only one.
    """
    table, index = op.needed("self"), op.needed("indices")
    rows, width = table.shape
    tiles, _, _ = one_a_run(runs)
    count = min(rows, len(tiles))
    number = np.arange(count, dtype=np.int64)
    begin, end = number * rows // count, (number + 1) * rows // count
    around = np.concatenate([
        np.concatenate((np.full(width, PAD), np.arange(b * width, e * width), np.full(width, PAD)))
        for b, e in zip(begin.tolist(), end.tolist(), strict=True)
    ])

    def code(sizes: Sizes) -> Graph:
        first, last = sizes
        written = Code()
        held = written.given(table.dtype, last - first + 2, width)
        named = written.given(index.dtype, index.num_elements)
        # Rows of others are the one before or the one behind, of zeros, which stay what they are.
        within = written.run(
            "aten.clamp.default", [(index.dtype, named.shape)], {"min": first - 1, "max": last}, self=named,
        )[0]
        within = written.binary("sub", within, first - 1)
        made = written.run(op.target, [(table.dtype, held.shape)], dict(op.attrs), self=held, indices=within)[0]
        attrs: dict[str, object] = {"dim": 0, "start": 1, "end": last - first + 1, "step": 1}
        return written.graph([
            written.run("aten.slice.Tensor", [(table.dtype, (last - first, width))], attrs, self=made)[0],
        ])

    reads = (
        listed("self", around, (end - begin + 2) * width), everything("indices", index.num_elements, count),
    )
    writes = (ranges("out", begin * width, end * width),)
    return VertexSet(tiles[:count], reads, writes, np.stack((begin, end), 1), code)
