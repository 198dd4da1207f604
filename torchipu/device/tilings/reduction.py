"""Compute sets that reduce rows of values: where they lie, and then across tiles, in one or several levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.stage import Taken
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run

LEAST_PIECE = 8  # values that are worth a partial
Folding = Callable[[Code, list[Tensor], Sequence[DType], int], Sequence[Tensor]]
"""``(code, values, element types, span) -> results``: values ``[n, m]`` become ``[n, 1]``. Each value of a row stands
for so many elements beside each other; the last one may stand for fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """What a reduction computes.

    Attributes:
        table: ``[rows, length]``, the elements of each row.
        reads: What goes into it: values of elements, by ``table`` or through an index of their own.
        of_rows: What it reads besides, a value for each row.
        partials: Names of what pieces of a row become, and types.
        results: What comes of a row.
        begin: Folds elements; what is read of rows comes behind them, as ``[n, 1]``.
        join: Folds partials.
        finish: Makes results of what a whole row has been folded to; None where that is it.
    """

    table: Numbers
    reads: Sequence[Taken]
    results: Sequence[Taken]
    begin: Folding
    join: Folding
    partials: Sequence[tuple[str, DType]] = (("sums", DType.FLOAT),)
    of_rows: Sequence[Taken] = ()
    finish: Callable[[Code, list[Tensor]], Sequence[Tensor]] | None = None

    def folded(self, code: Code, folding: Folding, values: list[Tensor], span: int, *, is_last: bool) -> list[Tensor]:
        """Return what rows of values become: partials, or results where this is the last level."""
        types = [dtype for _, dtype in self.partials]
        if not is_last:
            return list(folding(code, values, types, span))
        if self.finish is None:
            return list(folding(code, values, [one.dtype for one in self.results], span))
        return list(self.finish(code, list(folding(code, values, types, span))))


@dataclass(frozen=True, slots=True)
class Level:
    """One of the compute sets of a reduction.

    Attributes:
        number: 0 for the one that reads elements.
        elements: Iteration space of each of the sets: rows of the last, pieces of rows of those before.
        spans: Elements of a row that go into a piece of each set.
    """

    number: int
    elements: tuple[int, ...]
    spans: tuple[int, ...]

    @property
    def pieces(self) -> int:
        """Into how many each row is folded."""
        return self.elements[self.number] // self.elements[-1]


def rows_of(shape: Sequence[int], dims: Sequence[int]) -> Numbers:
    """Return the elements of a row-major value that go together when dimensions are reduced: ``[rows, length]``."""
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    length = prod(shape[dim] for dim in dims)
    numbers = np.arange(prod(shape), dtype=np.int64).reshape(tuple(shape))
    return numbers.transpose([*kept, *dims]).reshape(-1, length)


def rows_along(split: tuple[int, int, int]) -> Numbers:
    """Return the elements along a dimension, of the sizes before, of and after it: ``[rows, length]``."""
    return rows_of(split, (1,))


def reducing(reduction: Callable[[Op], Reduction | None], level: Level) -> Tiling:
    """Return the tiling of one level: of the last, one vertex for each run of rows, else one for each piece.

    Args:
        reduction: What an op reduces; None where it has nothing for these sets to do.
        level: Which one.
    """

    def tiling(op: Op, runs: TileMapping, part: int) -> VertexSet | None:
        made = reduction(op)
        if made is None:
            return None
        if len(made.table) == level.elements[-1]:
            return _level(made, level, runs)
        return _other_rows(made, level, runs)

    return tiling


def _other_rows(made: Reduction, level: Level, runs: TileMapping) -> VertexSet | None:
    """Return the vertices of a level of a reduction along other dimensions than those that its sets are made for.

    Rows are cut into as many pieces as the first set has vertices for, and joined in the last.
    """
    rows, length = made.table.shape
    pieces = min(level.elements[0] // rows, length // LEAST_PIECE) if len(level.elements) > 1 else 1
    if pieces <= 1:
        return _level(made, Level(0, (rows,), (length,)), shared_out(runs, rows)) if level.number == 0 else None
    span = -(-length // pieces)
    two = Level(0, (rows * pieces, rows), (span, span * pieces))
    if level.number == 0:
        return _level(made, two, shared_out(runs, rows * pieces))
    is_last = level.number == len(level.elements) - 1
    return _level(made, replace(two, number=1), shared_out(runs, rows)) if is_last else None


def shared_out(runs: TileMapping, elements: int) -> TileMapping:
    """Return an iteration space of so many elements, spread over the tiles of one of another size."""
    space = runs.num_elements
    ends = [(tile, -(-begin * elements // space), -(-end * elements // space)) for tile, begin, end in runs.runs]
    return TileMapping(tuple(run for run in ends if run[1] < run[2]))


def _level(made: Reduction, level: Level, runs: TileMapping) -> VertexSet:
    length = made.table.shape[1]
    pieces = -(-length // level.spans[level.number])  # those of which there is anything
    tiles, row, rows_here, piece = _spread(runs, level.pieces, pieces)
    is_last = level.pieces == 1
    if level.number == 0:
        counts, span = _piece_counts(piece, level.spans[level.number], length), 1
        reads = [_elements(one, made.table, rows_here * counts) for one in made.reads]
        reads += [one.region(row, row + rows_here) for one in made.of_rows]
    else:
        span = level.spans[level.number - 1]
        below = -(-length // span)
        counts = _piece_counts(piece, level.spans[level.number] // span, below)
        begin = row * below + piece * (level.spans[level.number] // span)
        reads = [ranges(_at(name, level.number - 1), begin, begin + rows_here * counts, dtype)
                 for name, dtype in made.partials]
    if is_last:
        writes = [one.region(row, row + rows_here) for one in made.results]
    else:
        begin = row * pieces + piece
        writes = [ranges(_at(name, level.number), begin, begin + 1, dtype) for name, dtype in made.partials]

    def code(sizes: Sizes) -> Graph:
        here, count = sizes
        written = Code()
        if level.number:
            values = [written.given(dtype, here, count) for _, dtype in made.partials]
        else:
            values = [written.given(one.dtype, here, count) for one in made.reads]
            values += [written.given(one.dtype, here, 1) for one in made.of_rows]
        folding = made.join if level.number else made.begin
        return written.graph(made.folded(written, folding, values, span, is_last=is_last))

    return VertexSet(tiles, tuple(reads), tuple(writes), np.stack((rows_here, counts), 1), code)


def _spread(runs: TileMapping, pieces: int, filled: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return the tile of each vertex, its first row, how many it has, and which piece of each."""
    tiles, begin, end = one_a_run(runs)
    if pieces == 1:
        return tiles, begin, end - begin, np.zeros_like(begin)
    element = np.arange(int(end[-1]), dtype=np.int64)
    by_element = np.repeat(tiles, end - begin)
    row, piece = element // pieces, element % pieces
    there = piece < filled
    return by_element[there], row[there], np.ones(int(there.sum()), np.int64), piece[there]


def _piece_counts(piece: Numbers, each: int, length: int) -> Numbers:
    return np.minimum(each, length - piece * each)


def _elements(one: Taken, table: Numbers, counts: Numbers) -> Region:
    """Return the region of a value whose elements go with those of the table, all of which are taken in order."""
    elements = table.reshape(-1) if one.index is None else one.index[table.reshape(-1)]
    return listed(one.name, elements, counts, one.dtype if one.is_partial else None)


def _at(name: str, level: int) -> str:
    return f"{name}.{level}"


# --------------------------------------------------------------------------- foldings
def add_up(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
    """Fold by sums."""
    return [code.summed(value, dtype) for value, dtype in zip(values, types, strict=True)]
