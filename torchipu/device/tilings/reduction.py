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
from torchipu.ir.region import Numbers, Region, distinct, listed, ranges
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


Order = tuple[tuple[int, bool], ...]
"""Sizes of the dimensions along which the pieces of rows are numbered, row-major, and whether each is a reduced one."""


@dataclass(frozen=True, slots=True)
class Level:
    """One of the compute sets of a reduction.

    Attributes:
        number: 0 for the one that reads elements.
        orders: Of the pieces that each of the sets makes; those of the last one are whole rows.
        fans: How many elements, or pieces of the set before, each of them makes one.
        stretch: Elements of a row that lie behind each other: no piece of the first set goes beyond. None for all.
    """

    number: int
    orders: tuple[Order, ...]
    fans: tuple[int, ...]
    stretch: int | None = None

    def is_of(self, rows: int, length: int) -> bool:
        """Whether the level was made for rows like these."""
        stretch = self.stretch or length
        pieces = length // stretch * -(-stretch // self.fans[0])
        return _size(self.orders[-1]) == rows and _size(self.orders[0]) == rows * pieces

    @property
    def is_last(self) -> bool:
        """Whether results come of it."""
        return self.number == len(self.orders) - 1


def rows_of_pieces(rows: int, pieces: int) -> Order:
    """Return the order in which the pieces of a row come one behind the other."""
    return (rows, False), (pieces, True)


def _size(order: Order) -> int:
    return prod(size for size, _ in order)


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
        if level.is_of(*made.table.shape):
            return _level(made, level, runs)
        return _other_rows(made, level, runs)

    return tiling


def _other_rows(made: Reduction, level: Level, runs: TileMapping) -> VertexSet | None:
    """Return the vertices of a level of a reduction of other rows than those that its sets are made for.

    Rows are cut into as many pieces as the first set has vertices for, and joined in the last.
    """
    rows, length = made.table.shape
    pieces = min(_size(level.orders[0]) // rows, length // LEAST_PIECE) if len(level.orders) > 1 else 1
    if pieces <= 1:
        one = Level(0, (((rows, False),),), (length,))
        return _level(made, one, shared_out(runs, rows)) if level.number == 0 else None
    span = -(-length // pieces)
    pieces = -(-length // span)
    two = Level(0, (rows_of_pieces(rows, pieces), ((rows, False),)), (span, pieces))
    if level.number == 0:
        return _level(made, two, shared_out(runs, rows * pieces))
    return _level(made, replace(two, number=1), shared_out(runs, rows)) if level.is_last else None


def shared_out(runs: TileMapping, elements: int) -> TileMapping:
    """Return an iteration space of so many elements, spread over the tiles of one of another size."""
    space = runs.num_elements
    ends = [(tile, -(-begin * elements // space), -(-end * elements // space)) for tile, begin, end in runs.runs]
    return TileMapping(tuple(run for run in ends if run[1] < run[2]))


def _level(made: Reduction, level: Level, runs: TileMapping) -> VertexSet:
    number = level.number
    below = _table(level.orders[number - 1]) if number else made.table
    row, first, counts = _folded_of(level, below.shape[1])
    tiles, begin, end = _alike(runs, counts)
    here, count = end - begin, counts[begin]
    elements = below.reshape(-1)[np.repeat(row * below.shape[1] + first, counts) + _within(counts)]
    if number:
        reads = [listed(_at(name, number - 1), elements, here * count, dtype) for name, dtype in made.partials]
    else:
        reads = [_elements(one, elements, here * count) for one in made.reads]
        reads += [_of_rows(one, row).region(begin, end) for one in made.of_rows]
    if level.is_last:
        writes = [one.region(begin, end) for one in made.results]
    else:
        writes = [ranges(_at(name, number), begin, end, dtype) for name, dtype in made.partials]
    span = prod(level.fans[:number])

    def code(sizes: Sizes) -> Graph:
        here, count = sizes
        written = Code()
        if number:
            values = [written.given(dtype, here, count) for _, dtype in made.partials]
        else:
            values = [written.given(one.dtype, here, count) for one in made.reads]
            values += [written.given(one.dtype, here, 1) for one in made.of_rows]
        folding = made.join if number else made.begin
        return written.graph(made.folded(written, folding, values, span, is_last=level.is_last))

    return VertexSet(tiles, tuple(reads), tuple(writes), np.stack((here, count), 1), code)


def _table(order: Order) -> Numbers:
    """Return the pieces of each row: ``[rows, pieces]``."""
    return rows_of([size for size, _ in order], [dim for dim, (_, is_reduced) in enumerate(order) if is_reduced])


def _folded_of(level: Level, width: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return of each piece that a level makes its row, and the first and the number of what goes into it.

    Args:
        level: Which one.
        width: How many elements, or pieces of the set before, a row has.
    """
    fan, stretch = level.fans[level.number], width if level.number else level.stretch or width
    table = _table(level.orders[level.number])
    row, piece = np.empty(table.size, np.int64), np.empty(table.size, np.int64)
    row[table], piece[table] = np.arange(table.shape[0])[:, None], np.arange(table.shape[1])
    outer, inner = np.divmod(piece, -(-stretch // fan))
    return row, outer * stretch + inner * fan, np.minimum(fan, stretch - inner * fan)


def _alike(runs: TileMapping, counts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the tile, the begin and the end of each vertex: a run, or a part of one that has as many of all."""
    tiles, begin, end = one_a_run(runs)
    begins = distinct(np.concatenate((begin, np.flatnonzero(np.diff(counts)) + 1)))
    return tiles[np.searchsorted(begin, begins, "right") - 1], begins, np.append(begins[1:], end[-1])


def _within(counts: Numbers) -> Numbers:
    """Return the numbers from 0 up to each count, one behind the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - counts, counts)


def _elements(one: Taken, elements: Numbers, counts: Numbers) -> Region:
    """Return the region of a value whose elements go with those of the table, all of which are taken in order."""
    taken = elements if one.index is None else one.index[elements]
    return listed(one.name, taken, counts, one.dtype if one.is_partial else None)


def _of_rows(one: Taken, row: Numbers) -> Taken:
    """Return what is read of the row of each piece."""
    return one if one.whole else replace(one, index=row if one.index is None else one.index[row])


def _at(name: str, level: int) -> str:
    return f"{name}.{level}"


# --------------------------------------------------------------------------- foldings
def add_up(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
    """Fold by sums."""
    return [code.summed(value, dtype) for value, dtype in zip(values, types, strict=True)]
