"""Plans of access to rows by index: how PopLibs cuts a table and its indices up over the tiles.

An exchange is fixed when the program is compiled, so a tile cannot fetch the rows that it finds named in an index. Each
tile has a part of the table instead, goes through indices, and copies or updates those rows that it has. A plan splits
three things:

- the *lines*, elements of a row: parts of them need nothing of each other;
- the *rows*: each part goes through all indices, most of which are not its own; of a look-up a second stage chooses,
  for each index, what the part that has its row has found;
- the *lookups*: each part needs a copy of the table, or, for an update, partial sums of its own, added up afterwards.

The plan is the one that a search over all splits finds the cheapest by what the planner knows: payloads of exchanges
and the estimated cycles of vertices. It counts no sync and no rearrangement of results, as PopLibs' planner does not,
which is why plans in two stages are taken that turn out to be the slower ones (rows on a Bow, docs/machines.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from torchipu.device.codelets import ARRANGED_CYCLES_PER_BYTE, multi_slice_cycles, multi_update_cycles
from torchipu.device.cost.exchange import REGULAR_FACTOR
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.region import Numbers
from torchipu.target import Target

INDEX_BYTES = 4  # indices are words on the device
PARTIAL_BYTES = 4  # sums of updates are floats
WORD_BYTES = 4  # lines that stay together where memory is short: what an exchange moves
MOST_AT_ONCE = 77  # partial sums; 2 sqrt(1472), poplibs, ipu_hardware.md 3.4
GRAIN_BYTES = 8  # of a look-up, lines that stay together: what a load or a store moves
SUMMED_GRAIN = 16  # of an update, elements that stay together; an estimate, ipu_hardware.md 3.4
REARRANGED = 1.25  # exchange of a table that lies otherwise, against its payload; poplibs planner, ipu_hardware.md 3.1

Costs = tuple["Numbers | NDArray[np.float64]", Numbers]
"""Cycles and temporary bytes of each split."""


@dataclass(frozen=True, slots=True)
class Access:
    """What is to be looked up, or updated.

    Attributes:
        lines: Elements of a row.
        rows: Of the table.
        lookups: Indices.
        element_bytes: Of the table.
        is_shared: Whether all lines share one index; else each line has its own.
        adds: Whether an update adds: its sums may be made in parts, wherever that takes less time.
        is_one_point: Whether all indices may name one row, so that one part of the rows has them all; else each part
            has as many of them. PopLibs' ``indicesDistribution``.
        tables: Values that a result of some of the indices has of each element. What does not add has such results
            only where it would not fit the memory else; 0 where it has none.
    """

    lines: int
    rows: int
    lookups: int
    element_bytes: int
    is_shared: bool = True
    adds: bool = False
    is_one_point: bool = False
    tables: int = 1


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What a tile has, at most.

    Attributes:
        access: What was planned.
        lines: Lines of a vertex.
        rows: Rows of a vertex.
        lookups: Indices that a vertex goes through, for each index operand's line.
    """

    access: Access
    lines: int
    rows: int
    lookups: int

    @property
    def line_parts(self) -> int:
        """Parts that the lines are split into."""
        return ceil_div(self.access.lines, self.lines)

    @property
    def row_parts(self) -> int:
        """Parts that the table's rows are split into."""
        return ceil_div(self.access.rows, self.rows)

    @property
    def lookup_parts(self) -> int:
        """Parts that the indices are split into."""
        return ceil_div(self.access.lookups, self.lookups)

    @property
    def vertices(self) -> int:
        """How many tiles take part."""
        return self.line_parts * self.row_parts * self.lookup_parts

    @property
    def chosen(self) -> int:
        """Indices for which a vertex of the second stage of a look-up chooses."""
        return ceil_div(self.lookups, self.row_parts)

    @property
    def group(self) -> int:
        """Partial sums that are added up first: near the root of all, where these are more than two roots of 1,472.

        PopLibs adds a stage to a reduction there, ``ipu_hardware.md`` 3.4.
        """
        parts = self.lookup_parts
        return parts if parts < MOST_AT_ONCE else ceil_div(parts, isqrt(parts))

    @property
    def groups(self) -> int:
        """Groups of partial sums."""
        return ceil_div(self.lookup_parts, self.group)

    @property
    def sums_whole_rows(self) -> bool:
        """Whether partial sums are of all rows, and lie as the result does: they are added up where that lies."""
        return self.lookup_parts > 1 and self.row_parts == 1

    @property
    def tables(self) -> int:
        """Values that a vertex has of each element of its part of the table."""
        return self.access.tables if self.lookup_parts > 1 else 1

    @property
    def width(self) -> int:
        """Elements that an index selects on a tile, all in one piece."""
        return self.lines if self.access.is_shared else 1

    @property
    def sharers(self) -> int:
        """Parts of the rows that the indices name alike."""
        return 1 if self.access.is_one_point else self.row_parts

    def indices(self, lookups: int) -> int:
        """Return how many numbers a vertex reads for so many lookups."""
        return lookups if self.access.is_shared else lookups * self.lines


@cache
def plan_look(target: Target, access: Access, available: float) -> SlicePlan:
    """Return the plan of a look-up.

    Args:
        target: The machine.
        access: What is looked up.
        available: Part of a tile's memory for temporary values.
    """
    grain = max(1, GRAIN_BYTES // access.element_bytes)
    return _best(target, access, available, (access.lookups,), grain, _look_costs)


@cache
def plan_update(target: Target, access: Access, available: float) -> SlicePlan:
    """Return the plan of an update.

    Args:
        target: The machine.
        access: What is updated.
        available: Part of a tile's memory for temporary values.
    """
    most_parts = (access.lookups,) if access.adds else (1, access.lookups) if access.tables else (1,)
    return _best(target, access, available, most_parts, SUMMED_GRAIN, _update_costs)


def _look_costs(splits: _Splits) -> Costs:
    """Return cycles and temporary bytes of look-ups."""
    target, element_bytes = splits.target, splits.access.element_bytes
    later = splits.row_parts > 1
    chosen = _ratio(splits.lookups, splits.row_parts) * splits.each
    candidates = chosen * splits.row_parts * splits.width
    cycles = (
        REGULAR_FACTOR * splits.words(splits.indices, INDEX_BYTES) + REARRANGED * splits.words(splits.table)
        + multi_slice_cycles(target, splits.here, splits.indices - splits.here, splits.width, element_bytes)
        + later * REGULAR_FACTOR * splits.words(candidates)
        + later * multi_slice_cycles(target, chosen, np.zeros_like(chosen), splits.width, element_bytes)
    )
    found = splits.indices * splits.width
    temporary = element_bytes * (splits.copied * splits.table + later * (found + candidates))
    return cycles, temporary + INDEX_BYTES * splits.indices


def _update_costs(splits: _Splits) -> Costs:
    """Return cycles and temporary bytes of updates."""
    target, access, element_bytes = splits.target, splits.access, splits.access.element_bytes
    rows = splits.indices * splits.width
    moved = splits.words(splits.indices, INDEX_BYTES) + splits.words(rows)
    # Zeros are filled in a vector a worker and cycle; workers share partial sums out, two cycles a vector of each.
    zeroed = splits.words(splits.table, PARTIAL_BYTES) / 2
    added = (2 + 8 / splits.lookup_parts) * splits.words(splits.table, PARTIAL_BYTES) / 4
    added = added + (splits.row_parts > 1) * PARTIAL_BYTES * ARRANGED_CYCLES_PER_BYTE * splits.table
    tables = np.where(splits.copied, access.tables, 1)
    launched = target.num_workers * (25 + 20)
    cycles = (
        REGULAR_FACTOR * (moved + splits.copied * tables * splits.words(splits.table, PARTIAL_BYTES))
        + multi_update_cycles(
            target, splits.here, splits.indices - splits.here, splits.width * tables, element_bytes,
            is_one_point=access.is_one_point,
        )
        + splits.copied * (launched + tables * (zeroed + added))
    )
    partials = PARTIAL_BYTES * splits.copied * tables * splits.table
    return cycles, INDEX_BYTES * splits.indices + element_bytes * rows + partials


def _best(
    target: Target, access: Access, available: float, most_parts: Sequence[int], grain: int,
    costs_of: Callable[[_Splits], Costs],
) -> SlicePlan:
    """Return the cheapest plan whose temporary values fit; where none does, the one that needs the least memory.

    A tile holds its part of the table besides, which has to fit its memory. The least memory is found among parts of
    lines down to a word, as PopLibs' planner finds it.

    Args:
        target: The machine.
        access: What is planned.
        available: Part of a tile's memory for temporary values.
        most_parts: Of the indices; each number only where no plan fits with those before.
        grain: Lines that stay together where memory is not short.
        costs_of: Gives cycles and temporary bytes of all splits.
    """
    for parts in most_parts:
        splits = _Splits(target, access, parts, grain)
        cycles, temporary = costs_of(splits)
        held = access.element_bytes * splits.table
        fits = (temporary <= available * target.tile_memory_bytes) & (held + temporary <= target.tile_memory_bytes)
        if fits.any():
            return splits.plan(splits.first(np.where(fits, cycles, np.inf)))
    splits = _Splits(target, access, most_parts[-1], max(1, WORD_BYTES // access.element_bytes))
    cycles, temporary = costs_of(splits)
    needed = temporary + access.element_bytes * splits.table
    return splits.plan(splits.first(np.where(needed == needed.min(), cycles, np.inf)))


class _Splits:
    """All ways to cut an access up, as arrays.

    Args:
        target: The machine.
        access: What is cut up.
        most_lookup_parts: Parts of the indices, at most.
        together: Lines that are not split, where they share an index.
    """

    def __init__(self, target: Target, access: Access, most_lookup_parts: int, together: int) -> None:
        self.target, self.access = target, access
        grain = together if access.is_shared else 1
        grains = ceil_div(access.lines, grain)
        by_line, by_row, by_lookup = _triples(target.num_tiles)
        fits = (by_line <= grains) & (by_row <= access.rows) & (by_lookup <= most_lookup_parts)
        self.lines = np.minimum(_ratio(grains, by_line[fits]) * grain, access.lines)
        self.rows = _ratio(access.rows, by_row[fits])
        self.lookups = _ratio(access.lookups, by_lookup[fits])
        self.row_parts = _ratio(access.rows, self.rows)
        self.lookup_parts = _ratio(access.lookups, self.lookups)
        self.copied = self.lookup_parts > 1
        self.table = self.lines * self.rows
        self.width: Numbers = self.lines if access.is_shared else np.ones_like(self.lines)
        self.each: Numbers = np.ones_like(self.lines) if access.is_shared else self.lines
        self.indices = self.lookups * self.each
        self.here = self.indices if access.is_one_point else _ratio(self.indices, self.row_parts)

    def words(self, elements: Numbers, element_bytes: int | None = None) -> Numbers:
        """Return the cycles in which a tile receives elements."""
        num_bytes = elements * (element_bytes or self.access.element_bytes)
        return _ratio(num_bytes, self.target.exchange_bytes_per_cycle)

    def first(self, cycles: NDArray[np.float64]) -> int:
        """Return which is the fastest; of several that are, the one with the least of the table on a tile.

        With few indices the vertices' cycles do not say how many tiles share the rows.
        """
        least = np.flatnonzero(cycles == cycles.min())
        return int(least[np.argmin(self.table[least])])

    def plan(self, place: int) -> SlicePlan:
        """Return one of them."""
        return SlicePlan(self.access, int(self.lines[place]), int(self.rows[place]), int(self.lookups[place]))


@cache
def _triples(tiles: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return all threes of positive numbers with a product of so much at most."""
    pairs = [(first, second) for first in range(1, tiles + 1) for second in range(1, tiles // first + 1)]
    first, second = np.array(pairs, np.int64).T
    thirds = tiles // (first * second)
    third = np.arange(thirds.sum(), dtype=np.int64) - np.repeat(np.cumsum(thirds) - thirds, thirds) + 1
    return np.repeat(first, thirds), np.repeat(second, thirds), third


def _ratio(numerator: Numbers | int, denominator: Numbers | int) -> Numbers:
    """Return quotients rounded up."""
    return np.asarray(-(-numerator // denominator), np.int64)
