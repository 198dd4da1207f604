"""Compute sets whose vertices reduce windows of an image, or the windows that an element lies in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import PAD, Numbers, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run


@dataclass(frozen=True, slots=True, eq=False)
class Along:
    """Windows along one dimension.

    Attributes:
        size: Elements of the image.
        table: ``[windows, width]``, what each holds, with `PAD` behind it.
        divisors: ``[windows]``, by how much an average divides.
        begin: Writes where windows begin, of their numbers.
        step: Elements from one of a window to the next.
    """

    size: int
    table: Numbers
    divisors: Numbers
    begin: Callable[[Code, Tensor], Tensor]
    step: int


Geometry = Callable[[Op], list[Along]]
MAXIMA, PLACES, SUMS = "maxima", "places", "sums"
"""Partials: the largest element of each piece of a window, where in the piece it is, and the sum of its elements."""


# --------------------------------------------------------------------------- where windows lie
def fixed(image: Callable[[Op], Tensor], pooled: Callable[[Op], Tensor], dimensions: int) -> Geometry:
    """Return windows of one size along the last dimensions.

    Args:
        image: What an op has windows of.
        pooled: What has an element for each of them.
        dimensions: How many.
    """

    def geometry(op: Op) -> list[Along]:
        sizes, counts = image(op).shape[-dimensions:], pooled(op).shape[-dimensions:]
        window = _numbers(op, "kernel_size", dimensions, ())
        stride, padding = _numbers(op, "stride", dimensions, window), _numbers(op, "padding", dimensions, (0,))
        dilation = _numbers(op, "dilation", dimensions, (1,))
        found = list(map(_fixed, sizes, counts, window, stride, padding, dilation))
        if op.given("divisor_override"):
            return [_divided(one, op.integer("divisor_override") if not dim else 1) for dim, one in enumerate(found)]
        if not op.flag("count_include_pad", True):
            return [_divided(one, (one.table != PAD).sum(1)) for one in found]
        return found

    return geometry


def adaptive(image: Callable[[Op], Tensor], pooled: Callable[[Op], Tensor], dimensions: int) -> Geometry:
    """Return windows that cover an image evenly; see ``fixed``."""

    def geometry(op: Op) -> list[Along]:
        return list(map(_adaptive, image(op).shape[-dimensions:], pooled(op).shape[-dimensions:]))

    return geometry


def _numbers(op: Op, name: str, dimensions: int, default: Sequence[int]) -> tuple[int, ...]:
    values = tuple(op.integers(name, ()) if op.given(name) else ()) or tuple(default)
    return values * dimensions if len(values) == 1 else values


def _fixed(size: int, count: int, window: int, stride: int, padding: int, dilation: int) -> Along:
    begin = np.arange(count, dtype=np.int64) * stride - padding
    first = np.maximum(begin, begin % dilation)  # that of a window which begins in the padding
    end = np.minimum(begin + (window - 1) * dilation + 1, size)

    def where(code: Code, number: Tensor) -> Tensor:
        low = code.binary("add", code.binary("mul", number, stride), -padding)
        if not padding:
            return low
        return code.run("aten.maximum.default", [(low.dtype, low.shape)], self=low, other=code.rest(low, dilation))[0]

    counted = np.minimum(begin + window, size + padding) - begin
    return Along(size, _filled(first, end, dilation), counted, where, dilation)


def _adaptive(size: int, count: int) -> Along:
    number = np.arange(count, dtype=np.int64)
    first, end = number * size // max(1, count), -(-(number + 1) * size // max(1, count))
    return Along(size, _filled(first, end, 1), end - first,
                 lambda code, number: code.quotient(code.binary("mul", number, size), count), 1)


def _filled(first: Numbers, end: Numbers, step: int) -> Numbers:
    width = int((-(-(end - first) // step)).max(initial=1))
    held = first[:, None] + np.arange(width, dtype=np.int64) * step
    return np.where(held < end[:, None], held, PAD)


def _divided(one: Along, divisors: Numbers | int) -> Along:
    held = np.broadcast_to(np.asarray(divisors, np.int64), one.divisors.shape)
    return Along(one.size, one.table, np.maximum(held, 1), one.begin, one.step)


# --------------------------------------------------------------------------- windows of several dimensions
def _together(sizes: Sequence[int], tables: Sequence[Numbers]) -> Numbers:
    """Return tables along dimensions as one of all: ``[windows, width]``, elements of the image by their number."""

    def joined(far: Numbers, near: tuple[int, Numbers]) -> Numbers:
        size, table = near
        both = far[:, None, :, None] * size + table[None, :, None, :]
        there = (far[:, None, :, None] != PAD) & (table[None, :, None, :] != PAD)
        rows, columns = len(far) * len(table), far.shape[1] * table.shape[1]
        return np.where(there, both, PAD).reshape(rows, columns)

    return reduce(joined, zip(sizes[1:], tables[1:], strict=True), tables[0])


def _everywhere(table: Numbers, size: int, elements: int) -> Numbers:
    """Repeat a table of one image of a size for all images that a value has."""
    images = np.arange(elements // max(1, len(table)), dtype=np.int64)[:, None, None] * size
    return np.where(table == PAD, PAD, table + images).reshape(-1, table.shape[1])


def _reverse(table: Numbers, size: int) -> Numbers:
    """Return the rows of a table that each of so many elements is in: ``[size, most]``, with `PAD` behind them."""
    row, column = np.nonzero(table != PAD)
    element = table[row, column]
    order = np.argsort(element, kind="stable")
    element, row = element[order], row[order]
    counts = np.bincount(element, minlength=size)
    place = np.arange(len(element), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.full((size, int(counts.max(initial=1))), PAD, np.int64)
    found[element, place] = row
    return found


def _windows(along: Sequence[Along]) -> Numbers:
    return _together([one.size for one in along], [one.table for one in along])


def _covers(along: Sequence[Along]) -> Numbers:
    """Return the windows that each element of an image lies in."""
    return _together([len(one.table) for one in along], [_reverse(one.table, one.size) for one in along])


def _divisors(along: Sequence[Along]) -> Numbers:
    return reduce(lambda far, near: (far[:, None] * near[None, :]).reshape(-1), [one.divisors for one in along])


# --------------------------------------------------------------------------- windows in pieces
InPieces = Callable[[int], tuple[Tiling, Tiling]]
"""Tilings of windows that each are cut into so many pieces: of what pieces come to, and of these together."""


def _in_pieces(along: Sequence[Along], windows: int, pieces: int) -> Numbers:
    """Return the elements of each piece of so many windows, ``[windows * pieces, span]``, with `PAD` behind them."""
    table = _windows(along)
    span = -(-table.shape[1] // pieces)
    whole = np.pad(table, ((0, 0), (0, pieces * span - table.shape[1])), constant_values=PAD)
    held = _everywhere(whole, math.prod(one.size for one in along), windows)
    return held.reshape(windows * pieces, span)


def maximum_in_pieces(geometry: Geometry) -> InPieces:
    """Return the tilings of a pool that keeps the largest element of each window; see ``maximum``."""

    def tilings(pieces: int) -> tuple[Tiling, Tiling]:
        def begin(op: Op, runs: TileMapping, part: int) -> VertexSet:
            held, kind = _in_pieces(geometry(op), op.outputs[0].num_elements, pieces), op.inputs[0].dtype
            tiles, begin, end = one_a_run(runs)

            def code(sizes: Sizes) -> Graph:
                written = Code()
                return written.graph(written.largest(written.given(kind, sizes[0], held.shape[1])))

            reads = (listed("self", held, (end - begin) * held.shape[1], pad=-math.inf),)
            writes = ranges(MAXIMA, begin, end, kind), ranges(PLACES, begin, end, DType.LONG)
            return VertexSet(tiles, reads, writes, (end - begin).reshape(-1, 1), code)

        def finish(op: Op, runs: TileMapping, part: int) -> VertexSet:
            along, kind = geometry(op), op.inputs[0].dtype
            windows = _windows(along)
            tiles, begin, end = one_a_run(runs)

            def code(sizes: Sizes) -> Graph:
                first, count = sizes
                written = Code()
                values, places = (written.given(dtype, count, pieces) for dtype in (kind, DType.LONG))
                most, piece = written.largest(values)
                before = written.binary("mul", piece, -(-windows.shape[1] // pieces))
                place = written.binary("add", before, written.gathered(places, piece))
                place = written.shaped(place, count)
                return written.graph([most, _place(written, along, written.numbered(first, count), place)])

            reads = (ranges(MAXIMA, begin * pieces, end * pieces, kind),
                     ranges(PLACES, begin * pieces, end * pieces, DType.LONG))
            writes = ranges("out", begin, end), ranges("out1", begin, end)
            return VertexSet(tiles, reads, writes, np.stack((begin % len(windows), end - begin), 1), code)

        return begin, finish

    return tilings


def average_in_pieces(geometry: Geometry) -> InPieces:
    """Return the tilings of a pool to averages; see ``average``."""

    def tilings(pieces: int) -> tuple[Tiling, Tiling]:
        def begin(op: Op, runs: TileMapping, part: int) -> VertexSet:
            held = _in_pieces(geometry(op), op.outputs[0].num_elements, pieces)
            tiles, begin, end = one_a_run(runs)

            def code(sizes: Sizes) -> Graph:
                written = Code()
                return written.graph([written.summed(written.given(op.inputs[0].dtype, sizes[0], held.shape[1]))])

            reads = (listed(_only(op), held, (end - begin) * held.shape[1]),)
            write = ranges(SUMS, begin, end, DType.FLOAT)
            return VertexSet(tiles, reads, (write,), (end - begin).reshape(-1, 1), code)

        def finish(op: Op, runs: TileMapping, part: int) -> VertexSet:
            held = np.arange(runs.num_elements * pieces, dtype=np.int64).reshape(-1, pieces)
            return _averaged(op, runs, _divisors(geometry(op)), held, SUMS)

        return begin, finish

    return tilings


# --------------------------------------------------------------------------- maxima
def maximum(geometry: Geometry) -> Tiling:
    """Return the tiling of a pool that keeps the largest element of each window, and where it is."""

    def tiling(op: Op, runs: TileMapping, part: int) -> VertexSet:
        along, kind = geometry(op), op.inputs[0].dtype
        tiles, begin, end = one_a_run(runs)
        windows = _windows(along)
        held = _everywhere(windows, math.prod(one.size for one in along), runs.num_elements)
        width = windows.shape[1]

        def code(sizes: Sizes) -> Graph:
            first, count = sizes
            written = Code()
            most, place = written.largest(written.given(kind, count, width))
            place = _place(written, along, written.numbered(first, count), written.shaped(place, count))
            return written.graph([most, place])

        reads = (listed("self", held, (end - begin) * width, pad=-math.inf),)
        writes = ranges("out", begin, end), ranges("out1", begin, end)
        return VertexSet(tiles, reads, writes, np.stack((begin % len(windows), end - begin), 1), code)

    return tiling


def _place(code: Code, along: Sequence[Along], window: Tensor, place: Tensor) -> Tensor:
    """Return the number in the image of an element of a window, by its place in there."""
    total, stride = None, 1
    for number, one in reversed(list(enumerate(along))):
        within, here = place, code.rest(window, len(one.table))
        if number:
            width = one.table.shape[1]
            within, place, window = code.rest(place, width), code.quotient(place, width), code.quotient(
                window, len(one.table))
        at = code.binary("add", one.begin(code, here), code.binary("mul", within, one.step))
        at = code.binary("mul", at, stride)
        total = at if total is None else code.binary("add", total, at)
        stride *= one.size
    assert total is not None
    return total


def maximum_backward(geometry: Geometry) -> Tiling:
    """Return the tiling of the gradient of such a pool: each element adds up those of windows that chose it."""

    def tiling(op: Op, runs: TileMapping, part: int) -> VertexSet:
        along, result = geometry(op), op.outputs[0]
        tiles, begin, end = one_a_run(runs)
        covers = _covers(along)
        held = _everywhere(covers, math.prod(len(one.table) for one in along), runs.num_elements)
        width, counts = covers.shape[1], (end - begin) * covers.shape[1]
        kinds = [op.needed(name).dtype for name in ("grad_output", "indices")]

        def code(sizes: Sizes) -> Graph:
            first, count = sizes
            written = Code()
            gradient, chosen = (written.given(kind, count, width) for kind in kinds)
            number = written.rest(written.numbered(first, count), len(covers))
            column = written.column(number)
            mine = written.chosen(written.compared("eq", chosen, column), gradient, written.full(0.0, kinds[0]))
            return written.graph([written.summed(mine, result.dtype)])

        reads = listed("grad_output", held, counts), listed("indices", held, counts, pad=-1)
        sizes = np.stack((begin % len(covers), end - begin), 1)
        return VertexSet(tiles, reads, (ranges("out", begin, end),), sizes, code)

    return tiling


# --------------------------------------------------------------------------- averages
def average(geometry: Geometry) -> Tiling:
    """Return the tiling of a pool to averages: on each tile, a vertex for the windows of each divisor."""

    def tiling(op: Op, runs: TileMapping, part: int) -> VertexSet:
        along = geometry(op)
        held = _everywhere(_windows(along), math.prod(one.size for one in along), runs.num_elements)
        return _averaged(op, runs, _divisors(along), held, _only(op))

    return tiling


def _averaged(op: Op, runs: TileMapping, divisors: Numbers, held: Numbers, name: str) -> VertexSet:
    """Return the vertices that add up what windows hold, ``[windows, width]``, and divide; see ``average``.

    Args:
        op: The pool.
        runs: Of the windows.
        divisors: By how much each window of an image divides.
        held: Elements of a value.
        name: Of this value: the image, or sums of pieces.
    """
    tiles, begin, end = one_a_run(runs)
    run = np.repeat(np.arange(len(tiles)), end - begin)
    divisor = np.tile(divisors, runs.num_elements // len(divisors))
    order = np.lexsort((divisor, run))
    heads = np.flatnonzero(np.diff(run[order], prepend=-1) | np.diff(divisor[order], prepend=-1))
    counts = np.diff(np.append(heads, len(order)))
    width, dtype = held.shape[1], DType.FLOAT if name == SUMS else op.inputs[0].dtype

    def code(sizes: Sizes) -> Graph:
        count, share = sizes
        written = Code()
        total = written.summed(written.given(dtype, count, width))
        return written.graph([written.binary("div", total, share, op.outputs[0].dtype)])

    reads = (listed(name, held[order], counts * width, dtype if name == SUMS else None),)
    sizes = np.stack((counts, divisor[order][heads]), 1)
    return VertexSet(tiles[run[order][heads]], reads, (listed("out", order, counts),), sizes, code)


def average_backward(geometry: Geometry) -> Tiling:
    """Return the tiling of its gradient: each element adds up those of its windows, by their divisors."""

    def tiling(op: Op, runs: TileMapping, part: int) -> VertexSet:
        along, kind = geometry(op), op.inputs[0].dtype
        covers, divisors = _covers(along), _divisors(along)
        windows = math.prod(len(one.table) for one in along)
        tiles, begin, end = one_a_run(runs)
        distinct = [int(value) for value in np.unique(divisors)]
        tables = [_kept(covers, (covers != PAD) & (divisors[covers] == value)) for value in distinct]
        reads = tuple(
            listed("grad_output", _everywhere(table, windows, runs.num_elements), (end - begin) * table.shape[1])
            for table in tables
        )

        def code(sizes: Sizes) -> Graph:
            written = Code()
            given = [written.given(kind, sizes[0], table.shape[1]) for table in tables]
            shares = [written.binary("div", written.summed(value), divisor)
                      for value, divisor in zip(given, distinct, strict=True)]
            total = reduce(lambda left, right: written.binary("add", left, right), shares)
            return written.graph([written.cast(total, op.outputs[0].dtype)])

        return VertexSet(tiles, reads, (ranges("out", begin, end),), (end - begin).reshape(-1, 1), code)

    return tiling


def _kept(table: Numbers, kept: Numbers) -> Numbers:
    """Return a table of some entries, one beside the other, and `PAD` behind them."""
    held = np.where(kept, table, PAD)
    order = np.argsort(held == PAD, axis=1, kind="stable")
    return np.take_along_axis(held, order, 1)[:, : max(1, int(kept.sum(1).max(initial=1)))]


def _only(op: Op) -> str:
    return op.operands[0] if op.operands else "in0"
