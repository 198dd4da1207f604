"""Lines: what indices along a dimension choose from, and which part of them each vertex of a plan has.

An index along a dimension picks from many lines at once: all the elements that differ in nothing but that dimension.
Places along the lines of a table are its rows, those along the lines of a result of a look-up are its indices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchipu.device.multi_slice import SlicePlan
from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import PAD, Numbers, Region, listed
from torchipu.ir.types import DType
from torchipu.ir.vertices import one_a_run


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Elements of a value, or some of them, as lines of one length: ``starts[line] + steps[place]``.

    Attributes:
        name: Label of the value.
        starts: ``[lines]``.
        steps: ``[places]``.
        is_shared: Whether there is one line for all that others have lines for.
    """

    name: str
    starts: Numbers
    steps: Numbers
    is_shared: bool = False

    def region(
        self, blocks: Blocks, *, whole: bool = False, around: bool = False, dtype: DType | None = None,
    ) -> Region:
        """Return what each vertex has of its lines, one line behind the other.

        Args:
            blocks: The lines and places of each vertex.
            whole: All places of a line, not those of the block.
            around: With an element that nobody has before and behind those of each line.
            dtype: Of partials.
        """
        count = len(blocks.tiles)
        low, high = blocks.begin, blocks.end
        if whole:
            low, high = np.zeros_like(low), np.full_like(low, len(self.steps))
        first, last = (np.zeros_like(low), np.ones_like(low)) if self.is_shared else (blocks.first, blocks.last)
        rows = last - first
        ends = np.concatenate(([0], np.cumsum(rows)))
        vertex = np.repeat(np.arange(count), rows)
        starts = self.starts[np.arange(ends[-1]) - np.repeat(ends[:-1] - first, rows)]
        strides = np.unique(np.diff(self.steps))
        if len(strides) > 1:
            pieces = [
                np.pad(start + self.steps[low[v] : high[v]], int(around), constant_values=PAD)
                for start, v in zip(starts.tolist(), vertex.tolist(), strict=True)
            ]
            elements = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
            return listed(self.name, elements, rows * (high - low + 2 * around), dtype)
        begin = starts + (self.steps[np.minimum(low, len(self.steps) - 1)][vertex] if len(self.steps) else 0)
        runs: list[Numbers] = [begin, (high - low)[vertex], np.full(len(begin), strides[0] if len(strides) else 1)]
        if around:
            outside = np.full(len(begin), PAD), np.ones_like(begin), np.ones_like(begin)
            runs = [np.stack((pad, run, pad), 1).reshape(-1) for pad, run in zip(outside, runs, strict=True)]
            ends = 3 * ends
        return Region(self.name, runs[0], runs[1], runs[2], ends, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The part of an array of lines that each vertex works on.

    Attributes:
        tiles: Of the vertices.
        first: Number of its first line.
        last: That after its last line.
        begin: Its first place along the lines.
        end: That after its last place.
    """

    tiles: Numbers
    first: Numbers
    last: Numbers
    begin: Numbers
    end: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The vertices of a plan, and the place of each in the order of lines, of rows and of indices.

    Attributes:
        plan: The plan.
        rows: The lines of each vertex, and its places in the table.
        named: The same lines, and its places in the index.
    """

    plan: SlicePlan
    rows: Blocks
    named: Blocks

    def partials(self, count: Numbers) -> Numbers:
        """Return the first element of each vertex' partials, of which it has so many, and the end of all."""
        return np.concatenate(([0], np.cumsum(count)))


def one_tile(vertices: int) -> TileMapping:
    """Return an iteration space of so many vertices that is asked for their order alone."""
    return TileMapping(tuple((0, number, number + 1) for number in range(vertices)))


def parts_of(runs: TileMapping, plan: SlicePlan) -> Parts:
    """Return the vertices of a plan on the tiles of an iteration space, one each: by lines, rows, then indices."""
    tiles, _, _ = one_a_run(runs)
    access = plan.access
    number = np.arange(plan.vertices, dtype=np.int64)
    line, row, lookup = np.unravel_index(number, (plan.line_parts, plan.row_parts, plan.lookup_parts))
    ends = (line * plan.lines, np.minimum((line + 1) * plan.lines, access.lines))
    rows, named = (
        Blocks(tiles[: plan.vertices], *ends, part * size, np.minimum((part + 1) * size, extent))
        for part, size, extent in ((row, plan.rows, access.rows), (lookup, plan.lookups, access.lookups))
    )
    return Parts(plan, rows, named)


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """An operand that names places along lines.

    Attributes:
        lines: Where its numbers are.
        tensor: The operand.
        extent: Places that it chooses from.
        weight: By how much the place along the line grows with it: several operands together number it.
        wraps: Whether negative numbers count from the end.
    """

    lines: Lines
    tensor: Tensor
    extent: int
    weight: int = 1
    wraps: bool = False


def joined(code: Code, index: tuple[Index, ...], lines: int, places: int) -> Tensor:
    """Return numbers of places, of index operands."""
    total: Tensor | None = None
    for one in index:
        number = code.part(one.tensor, *(() if one.lines.is_shared else (lines,)), places)
        if one.wraps:
            number = code.rest(number, one.extent)
        if one.weight != 1:
            number = code.binary("mul", number, one.weight)
        total = number if total is None else code.binary("add", total, number)
    assert total is not None
    return total
