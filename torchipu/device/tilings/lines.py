"""Compute sets that look elements of lines up, or update them, by numbers that nobody knows before they run.

An index along a dimension picks from many lines at once: all the elements that differ in nothing but that dimension.
Exchanges are fixed when the program is compiled, so that a vertex cannot fetch the rows that it finds named in an
index. It has whole lines instead: the look-up of rows in a table is shared out by columns, and only where there are
more tiles than columns, the places that are looked up are too. An update is shared out by columns and stretches of
rows; a vertex ignores the numbers of rows that others have. Each reads the whole index of its lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.fills import constant
from torchipu.device.tilings.moves import copies
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import PAD, Numbers, Region, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, VertexSet, one_a_run

BASE = "base"
"""Partials: what a result holds before rows are written."""


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


def blocks_of(runs: TileMapping, lines: int, places: int) -> Blocks:
    """Share lines out among the tiles of an iteration space, and places along them where tiles are left.

    Args:
        runs: Of the iteration space; one vertex a run, or fewer.
        lines: How many there are.
        places: Of a line.
    """
    tiles, _, _ = one_a_run(runs)
    across = min(lines, len(tiles))
    along = max(1, min(places, len(tiles) // across))
    line, place = (border.reshape(-1) for border in np.divmod(np.arange(across * along), along))
    return Blocks(
        tiles[: across * along], line * lines // across, (line + 1) * lines // across, place * places // along,
        (place + 1) * places // along,
    )


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


# --------------------------------------------------------------------------- look-up
@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A look-up: ``result[line, n] = table[line, index[n]]``, or ``index[line, n]``.

    Attributes:
        table: Its lines.
        tensor: The operand.
        index: The operands that together number the place along the line.
        result: Lines of the result.
    """

    table: Lines
    tensor: Tensor
    index: tuple[Index, ...]
    result: Lines


def looked_up(look_of: Callable[[Op], Look]) -> Callable[[Op, TileMapping, int], VertexSet]:
    """Return the tiling of a look-up: a vertex has lines of the table, and the numbers of places to take from them.

    Args:
        look_of: Describes an op.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        look = look_of(op)
        blocks = blocks_of(runs, len(look.result.starts), len(look.result.steps))
        reads = (look.table.region(blocks, whole=True), *(one.lines.region(blocks) for one in look.index))
        sizes = np.stack((blocks.last - blocks.first, blocks.end - blocks.begin), 1)
        write = look.result.region(blocks)
        return VertexSet(
            blocks.tiles, reads, (write,), sizes, lambda sizes: _code_of_look(look, sizes)
        )

    return tiling


def _code_of_look(look: Look, sizes: Sizes) -> Graph:
    lines, places = sizes
    code = Code()
    table = code.part(look.tensor, lines, len(look.table.steps))
    number = _joined(code, look.index, lines, places)
    if not look.index[0].lines.is_shared:
        return code.graph([code.gathered(table, number)])
    return code.graph(code.run(
        "aten.index_select.default", [(table.dtype, (lines, places))], {"dim": 1}, self=table, index=number
    ))


def _joined(code: Code, index: tuple[Index, ...], lines: int, places: int) -> Tensor:
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


# --------------------------------------------------------------------------- update
Join = Callable[[Code, Tensor, Tensor, "Tensor | None", int], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """An update: ``result[line, index[n]]`` is ``base`` there, joined with ``source[line, n]``.

    Attributes:
        result: The lines that rows are written to; what they leave out of the result stays as it is.
        index: The operands that together number the place along the line.
        source: Lines of what is written, a shared one for a single number; None where the op has it itself.
        tensor: The operand that it is.
        join: ``(code, base, number, source or None, place of the first row) -> result``: the op on
            ``[lines, places]``, whose rows may be fewer, with one before and one behind them that nobody reads.
        has_old: Whether ``self``, if there is one, is what the result was before; else it was zero.
    """

    result: Lines
    index: tuple[Index, ...]
    source: Lines | None
    tensor: Tensor | None
    join: Join
    has_old: bool = True


def prepared(update_of: Callable[[Op], Update]) -> Callable[[Op, TileMapping, int], VertexSet]:
    """Return the tiling of what comes before an update: the old value, or zeros, where the result lies.

    Args:
        update_of: Describes an op.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        tiles, begin, end = one_a_run(runs)
        update, result = update_of(op), op.outputs[0]
        lines, old = update.result, op.operand("self") if update.has_old else None
        places = _left_out(lines, result.num_elements)
        low, high = np.searchsorted(places, begin), np.searchsorted(places, end)
        kept = listed("out", np.concatenate([places[b:e] for b, e in zip(low, high, strict=True)]), high - low)
        reads = () if old is None else (ranges("self", begin, end), replace(kept, name="self"))
        sizes = np.stack((end - begin, high - low), 1)

        def code(sizes: Sizes) -> Graph:
            if old is None:
                return constant(result, sizes[0], 0)
            return copies([old] * len(sizes), result, sizes)

        base = ranges(BASE, begin, end, result.dtype)
        return VertexSet(tiles, reads, (base,) if old is None else (base, kept), sizes, code)

    return tiling


def _left_out(lines: Lines, count: int) -> Numbers:
    """Return which elements of a value of so many are on no line."""
    if len(lines.starts) * len(lines.steps) == count:
        return np.zeros(0, np.int64)
    is_left_out = np.ones(count, bool)
    is_left_out[(lines.starts[:, None] + lines.steps).reshape(-1)] = False
    return np.flatnonzero(is_left_out)


def updated(update_of: Callable[[Op], Update]) -> Callable[[Op, TileMapping, int], VertexSet]:
    """Return the tiling of an update: a vertex has stretches of lines, and all that may be written to them.

    Args:
        update_of: Describes an op.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        update = update_of(op)
        lines, result = update.result, op.outputs[0]
        blocks = blocks_of(runs, len(lines.starts), len(lines.steps))
        is_part = bool((blocks.end - blocks.begin < len(lines.steps)).any())
        base = replace(lines, name=BASE).region(blocks, around=is_part, dtype=result.dtype)
        reads = [base, *(one.lines.region(blocks, whole=True) for one in update.index)]
        if update.source is not None:
            reads.append(update.source.region(blocks, whole=True))
        sizes = np.stack((blocks.last - blocks.first, blocks.begin, blocks.end), 1)
        return VertexSet(
            blocks.tiles, tuple(reads), (lines.region(blocks),), sizes,
            lambda sizes: _code_of_update(update, result, is_part, sizes),
        )

    return tiling


def _code_of_update(update: Update, result: Tensor, is_part: bool, sizes: Sizes) -> Graph:
    lines, begin, end = sizes
    code, named = Code(), len(update.index[0].lines.steps)
    base = code.part(result, lines, end - begin + 2 * is_part)
    number = _joined(code, update.index, lines, named)
    if is_part:  # rows of a stretch from one; what lies outside is the row before or behind it
        clamped = code.unary("clamp", number, min=begin - 1, max=end)
        number = code.binary("sub", clamped, begin - 1)
    source = None
    if update.source is not None and update.tensor is not None:
        source = code.part(update.tensor, *(() if update.source.is_shared else (lines, named)))
    made = update.join(code, base, number, source, begin - 1 if is_part else 0)
    return code.graph([code.sliced(made, 1, 1, end - begin + 1) if is_part else made])
