"""Compute sets that sort rows: each vertex sorts groups of a few elements, until whole rows are in order.

A bitonic network compares elements in pairs. Where all pairs of several of its steps lie within short stretches of a
row, sorting these stretches does the same. Values travel with their places in the row, which tell equal ones apart:
the order is stable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, listed
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Where the rows of a value lie: element ``starts[row] + step * place``.

    Attributes:
        starts: ``[rows]``.
        step: From a place to the next.
        length: Places of a row.
    """

    starts: Numbers
    step: int
    length: int


def rows_around(outer: int, length: int, inner: int) -> Rows:
    """Return the rows along a dimension, with sizes before, of and behind it."""
    starts = np.arange(outer, dtype=np.int64)[:, None] * (length * inner) + np.arange(inner, dtype=np.int64)
    return Rows(starts.reshape(-1), inner, length)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of places that are sorted each by themselves, in each row the same ones.

    Attributes:
        places: ``[groups of a row, places of a group]``, ascending.
    """

    places: Numbers


def chunks_of(length: int, count: int) -> list[Groups]:
    """Return so many stretches of a row, nearly equal."""
    borders = (np.arange(count + 1) * length // count).tolist()
    return [Groups(np.arange(b, e)[None]) for b, e in pairwise(borders) if e > b]


def blocks_of(length: int, size: int) -> list[Groups]:
    """Return stretches of a size, the last of which may be shorter."""
    whole = length // size
    found = [Groups(np.arange(whole * size).reshape(whole, size)), Groups(np.arange(whole * size, length)[None])]
    return [groups for groups in found if groups.places.size]


def pairs_of(length: int, level: int, step: int) -> list[Groups]:
    """Return the pairs of a step of a bitonic network in which all comparisons go one way.

    The first step of a level compares each place with its mirror image in a block, later ones go by halved distances.
    Places whose partners lie behind the row stay where they are.

    Args:
        length: Of the row.
        level: Blocks of ``2 ** level`` places are in order behind its last step.
        step: Of the level.
    """
    place = np.arange(length)
    partner = place ^ ((1 << level) - 1 if step == 0 else 1 << (level - 1 - step))
    low, alone = place[(place < partner) & (partner < length)], place[partner >= length]
    found = [Groups(np.stack((low, partner[low]), 1)), Groups(alone[:, None])]
    return [groups for groups in found if groups.places.size]


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """What a sequence of compute sets sorts.

    Attributes:
        source: Rows of the operand.
        result: Rows of the results; they have the first places of the rows in order.
        descending: Whether the largest come first.
    """

    source: Rows
    result: Rows
    descending: bool


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One of the compute sets.

    Attributes:
        groups: What its vertices sort.
        number: Of the set.
        length: Places of a row that it reads.
        kept: How many places of each group go on, from its first; None for all.
        is_last: Whether it writes the results.
    """

    groups: tuple[Groups, ...]
    number: int
    length: int
    kept: int | None = None
    is_last: bool = False

    def going(self) -> int:
        """Return how many places of a row go on."""
        return sum(groups.places[:, : self.kept].size for groups in self.groups)


def ranked(ranking: Ranking, stage: Stage) -> Tiling:
    """Return the tiling of a compute set that sorts groups.

    Args:
        ranking: What is sorted.
        stage: The set.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        run_tiles, _, _ = one_a_run(runs)
        tiles, sizes, taken, going = [], [], [], []
        rows, before, slots = len(ranking.source.starts), 0, 0
        total = rows * sum(len(groups.places) for groups in stage.groups)
        for kind, groups in enumerate(stage.groups):
            count = rows * len(groups.places)
            read, write = _elements(ranking, stage, groups, slots)
            where = np.minimum((before + np.arange(count)) * len(run_tiles) // total, len(run_tiles) - 1)
            heads = np.flatnonzero(np.diff(where, prepend=-1))
            for first, last in zip(heads, np.append(heads[1:], count), strict=True):
                for share, kept in _written(stage, ranking, groups, int(first), int(last)):
                    tiles.append(run_tiles[where[first]])
                    # Only the first set numbers places: all others have the same code wherever their groups lie.
                    begin = 0 if stage.number else share[0] % len(groups.places)
                    sizes.append((kind, begin, len(share), kept))
                    taken.append(read[share].reshape(-1))
                    going.append(write[share, :kept].reshape(-1))
            before += count
            slots += groups.places[:, : stage.kept].size
        reads, writes = _regions(op, stage, taken, going)
        table = np.array(sizes, np.int64).reshape(-1, 4)
        at = np.array(tiles, np.int64)
        return VertexSet(at, reads, writes, table, lambda sizes: _code(op, ranking, stage, sizes))

    return tiling


def _elements(ranking: Ranking, stage: Stage, groups: Groups, slots: int) -> tuple[Numbers, Numbers]:
    """Return the elements that groups read and write, ``[rows * groups, places]``."""
    row, size = np.arange(len(ranking.source.starts)), groups.places.shape[1]
    if stage.number:
        read = row[:, None, None] * stage.length + groups.places
    else:
        read = ranking.source.starts[:, None, None] + ranking.source.step * groups.places
    if stage.is_last:
        write = ranking.result.starts[:, None, None] + ranking.result.step * groups.places
    elif stage.kept is None:
        write = row[:, None, None] * stage.length + groups.places
    else:
        slot = slots + np.arange(groups.places[:, : stage.kept].size).reshape(len(groups.places), -1)
        write = row[:, None, None] * stage.going() + slot
    return read.reshape(-1, size), write.reshape(-1, write.shape[-1])


def _written(
    stage: Stage, ranking: Ranking, groups: Groups, first: int, last: int,
) -> Iterable[tuple[Numbers, int]]:
    """Yield groups of a vertex that write as many of their places, and how many."""
    numbers = np.arange(first, last)
    size = groups.places.shape[1]
    kept = np.full(last - first, size if stage.kept is None else min(size, stage.kept))
    if stage.is_last:
        kept = (groups.places < ranking.result.length).sum(1)[numbers % len(groups.places)]
    for count in np.unique(kept[kept > 0]).tolist():
        mine = numbers[kept == count]
        for share in np.split(mine, np.flatnonzero(np.diff(mine) != 1) + 1):
            yield share, count


def _regions(
    op: Op, stage: Stage, taken: list[Numbers], going: list[Numbers],
) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    """Return the regions of values and of their places, as they are before the set and behind it."""
    named = ("values", op.inputs[0].dtype), ("places", DType.LONG)
    counts = [[len(one) for one in elements] for elements in (taken, going)]
    read, write = (np.concatenate([*elements, np.zeros(0, np.int64)]) for elements in (taken, going))
    if stage.number:
        reads = tuple(listed(f"{name}{stage.number}", read, counts[0], kind) for name, kind in named)
    else:
        reads = (listed("self", read, counts[0]),)
    if stage.is_last:
        return reads, tuple(listed(name, write, counts[1]) for name in ("out", "out1"))
    return reads, tuple(listed(f"{name}{stage.number + 1}", write, counts[1], kind) for name, kind in named)


# --------------------------------------------------------------------------- code
def _code(op: Op, ranking: Ranking, stage: Stage, sizes: Sizes) -> Graph:
    """Return code that sorts groups by value, and equal values by place."""
    kind, first, count, kept = sizes
    groups, written = stage.groups[kind], Code()
    width = groups.places.shape[1]
    values = written.given(op.inputs[0].dtype, count, width)
    if stage.number:
        in_turn, order = _sorted(written, written.given(DType.LONG, count, width), descending=False)
        in_order, order = _sorted(written, written.gathered(values, order), descending=ranking.descending)
        found = written.gathered(in_turn, order)
    else:
        in_order, order = _sorted(written, values, descending=ranking.descending)
        found = _numbered(written, order, groups, first)
    if kept < width:
        in_order, found = (written.sliced(value, 1, 0, kept) for value in (in_order, found))
    return written.graph([in_order, found])


def _sorted(code: Code, values: Tensor, *, descending: bool) -> tuple[Tensor, Tensor]:
    """Return the elements of rows in order, and where they were."""
    results = [(kind, values.shape) for kind in (values.dtype, DType.LONG)]
    attrs: dict[str, object] = {"stable": True, "dim": 1, "descending": descending}
    made, order = code.run("aten.sort.stable", results, attrs, self=values)
    return made, order


def _numbered(code: Code, order: Tensor, groups: Groups, first: int) -> Tensor:
    """Return places in the row of places in groups, whose first ones lie at equal distances."""
    per_row, begin = len(groups.places), int(groups.places[0, 0])
    distance = int(groups.places[1, 0]) - begin if per_row > 1 else 0
    step = int(groups.places[0, 1]) - begin if order.shape[1] > 1 else 1
    assert step == 1, "the first set sorts neighbours"
    within = code.rest(code.numbered(first, order.shape[0]), per_row)
    at = code.binary("add", code.binary("mul", within, distance), begin)
    return code.binary("add", order, code.column(at))
