"""Updates of rows by index, in the stages of a plan: the old values, rows of parts, then the sum of partial sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from torchipu.device.multi_slice import SlicePlan
from torchipu.device.tilings.code import Code
from torchipu.device.tilings.fills import constant
from torchipu.device.tilings.lines import Blocks, Index, Lines, joined, one_tile, parts_of
from torchipu.device.tilings.look_ups import places_of
from torchipu.device.tilings.moves import copies
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, in_turn, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run

BASE = "base"
"""Partials: what a result holds before rows are written."""
SUMS = "sums"
"""Partials: rows of a part of the table as they are after its updates; or, of some indices, what they add."""
GROUPS = "groups"
"""Partials: sums of partial sums, where there are many."""
TOTALS = "totals"
"""Partials: rows as they are after all updates, where there were partial sums."""

Join = Callable[[Code, Tensor, Tensor, "Tensor | None", int], Tensor]
Adds = Callable[[Code, Tensor, Tensor, int], tuple[Tensor, Tensor]]


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
        adds: ``(code, number, source) -> number, source``, if the op adds rows: those of which the sums are made,
            without what it leaves out; so that sums may be made in parts. None where it does not.
    """

    result: Lines
    index: tuple[Index, ...]
    source: Lines | None
    tensor: Tensor | None
    join: Join
    has_old: bool = True
    adds: Adds | None = None


def prepared(update_of: Callable[[Op], Update]) -> Callable[[Op, TileMapping, int], VertexSet]:
    """Return the tiling of what comes before an update: the old value, or zeros, where the result lies.

    Args:
        update_of: Describes an op.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        tiles, begin, end = one_a_run(runs)
        update, result = update_of(op), op.outputs[0]
        lines, old = update.result, op.operand("self") if update.has_old else None
        places = on_lines(lines, result.num_elements, others=True)
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


def on_lines(lines: Lines, count: int, *, others: bool = False) -> Numbers:
    """Return which elements of a value of so many are on its lines, or which ones are on none."""
    is_there = np.zeros(count, bool)
    is_there[(lines.starts[:, None] + lines.steps).reshape(-1)] = True
    return np.flatnonzero(is_there != others)


def updated(update_of: Callable[[Op], Update], plan: SlicePlan, *, in_place: bool = False) -> Tiling:
    """Return the tiling of an update: a vertex has a part of the table, and what may be written to it.

    Where indices are split too, a vertex sums rows up that belong to some of them, from zero on.

    Args:
        update_of: Describes an op.
        plan: How it is cut up.
        in_place: Whether what there was before is read, and rows are written, where the table lies.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        update, result = update_of(op), op.outputs[0]
        parts = parts_of(runs, plan)
        rows, named = parts.rows, parts.named
        dtype = DType.FLOAT if plan.lookup_parts > 1 else result.dtype
        reads = [one.lines.region(named) for one in update.index]
        if plan.lookup_parts == 1:
            base = replace(update.result, name="self" if in_place else BASE)
            reads.insert(0, base.region(rows, around=plan.row_parts > 1, dtype=None if in_place else result.dtype))
        if update.source is not None:
            reads.append(update.source.region(named, whole=update.source.is_shared))
        lines = rows.last - rows.first
        sizes = np.stack((lines, rows.begin, rows.end, named.end - named.begin), 1)
        code = _code_of_sums if plan.lookup_parts > 1 else _code_of_update
        is_last = in_place and plan.lookup_parts == 1
        write = update.result.region(rows) if is_last else in_turn(SUMS, lines * (rows.end - rows.begin), dtype)
        return VertexSet(
            rows.tiles, tuple(reads), (write,), sizes, lambda sizes: code(update, result, plan.row_parts > 1, sizes),
        )

    return tiling


def _code_of_update(update: Update, result: Tensor, is_part: bool, sizes: Sizes) -> Graph:
    lines, begin, end, named = sizes
    code = Code()
    base = code.part(result, lines, end - begin + 2 * is_part)
    number = _within(code, joined(code, update.index, lines, named), is_part, begin, end)
    made = update.join(code, base, number, _source(code, update, lines, named), begin - 1 if is_part else 0)
    return code.graph([code.sliced(made, 1, 1, end - begin + 1) if is_part else made])


def _code_of_sums(update: Update, result: Tensor, is_part: bool, sizes: Sizes) -> Graph:
    lines, begin, end, named = sizes
    code = Code()
    number = joined(code, update.index, lines, named)
    source = _source(code, update, lines, named)
    assert update.adds is not None
    assert source is not None
    number, source = update.adds(code, _within(code, number, True, begin, end), source, begin - 1)
    zeros = code.full(0.0, DType.FLOAT, lines, end - begin + 2)
    made = code.added_by_index(zeros, number, code.cast(source, DType.FLOAT))
    return code.graph([code.sliced(made, 1, 1, end - begin + 1)])


def _within(code: Code, number: Tensor, is_part: bool, begin: int, end: int) -> Tensor:
    """Return numbers of the rows of a part from one on; what lies outside is the row before or behind it."""
    if not is_part:
        return number
    return code.binary("sub", code.unary("clamp", number, min=begin - 1, max=end), begin - 1)


def _source(code: Code, update: Update, lines: int, named: int) -> Tensor | None:
    if update.source is None or update.tensor is None:
        return None
    return code.part(update.tensor, *(() if update.source.is_shared else (lines, named)))


def added(update_of: Callable[[Op], Update], plan: SlicePlan, level: int, *, in_place: bool = False) -> Tiling:
    """Return the tiling of a level of the sum of partial sums: all that have the same rows share these out among them.

    Args:
        update_of: Describes an op.
        plan: How it is cut up.
        level: 0 for sums of groups of partial sums, 1 for sums of all, with what was there before.
        in_place: As in `updated`.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        update, result = update_of(op), op.outputs[0]
        parts = parts_of(runs, plan)
        count = (parts.rows.last - parts.rows.first) * (parts.rows.end - parts.rows.begin)
        place = np.arange(plan.vertices) % plan.lookup_parts
        is_of_groups = level == 1 and plan.groups > 1
        name, together = (GROUPS, plan.groups) if is_of_groups else (SUMS, plan.lookup_parts)
        group, summed, of = np.zeros_like(place), np.full_like(place, together), np.full_like(place, plan.lookup_parts)
        if level == 0:
            group, place = place // plan.group, place % plan.group
            of = summed = np.minimum(plan.group, plan.lookup_parts - group * plan.group)
        begin = place * count // of
        here = (place + 1) * count // of - begin
        mine = np.flatnonzero(here)
        # Partials of one table follow each other: those of each index part, or of each group.
        tables = np.arange(plan.vertices) // plan.lookup_parts
        ends = np.concatenate(([0], np.cumsum(count[:: plan.lookup_parts])))
        first = ends[tables] * together + group * plan.group * count
        summed = summed[mine]
        number = np.arange(summed.sum()) - np.repeat(np.cumsum(summed) - summed, summed)
        heads = np.repeat((first + begin)[mine], summed) + number * np.repeat(count[mine], summed)
        firsts = np.concatenate(([0], np.cumsum(summed)))
        reads = [Region(name, heads, np.repeat(here[mine], summed), np.ones_like(heads), firsts, DType.FLOAT)]
        write = in_turn(TOTALS if level else GROUPS, here[mine], result.dtype if level else DType.FLOAT)
        if level == 1:
            elements = _elements_of(update, parts.rows, plan)
            base, dtype = ("self", None) if in_place else (BASE, result.dtype)
            reads.append(listed(base, elements, here[mine], dtype))
            write = listed("out", elements, here[mine]) if in_place else write
        return VertexSet(
            parts.rows.tiles[mine], tuple(reads), (write,), np.stack((summed, here[mine]), 1),
            lambda sizes: _code_of_sum(result if level else None, sizes),
        )

    return tiling


def _elements_of(update: Update, rows: Blocks, plan: SlicePlan) -> Numbers:
    """Return the elements of the rows of each part of the table in turn."""
    columns = (rows.first, rows.last, rows.begin, rows.end)
    return np.concatenate([
        (update.result.starts[first:last, None] + update.result.steps[low:high]).reshape(-1)
        for first, last, low, high in zip(*(one[:: plan.lookup_parts].tolist() for one in columns), strict=True)
    ])


def _code_of_sum(result: Tensor | None, sizes: Sizes) -> Graph:
    parts, count = sizes
    code = Code()
    total = code.summed(code.turned(code.given(DType.FLOAT, parts, count)))
    if result is None:
        return code.graph([total])
    base = code.cast(code.part(result, count, 1), DType.FLOAT)
    return code.graph([code.cast(code.binary("add", base, total), result.dtype)])


def finished(update_of: Callable[[Op], Update], plan: SlicePlan | None) -> Tiling:
    """Return the tiling of what follows: rows are laid out in the order of the result.

    Args:
        update_of: Describes an op.
        plan: How it was cut up; None where nothing was written.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        update, result = update_of(op), op.outputs[0]
        tiles, begin, end = one_a_run(runs)
        name, where = BASE, np.arange(result.num_elements)
        if plan is not None:
            rows = parts_of(one_tile(plan.vertices), plan).rows
            once = Blocks(*(column[:: plan.lookup_parts] for column in (
                rows.tiles, rows.first, rows.last, rows.begin, rows.end,
            )))
            name = SUMS if plan.lookup_parts == 1 else TOTALS
            where = places_of(update.result, once, result.num_elements)
        written = on_lines(update.result, result.num_elements)
        low, high = np.searchsorted(written, begin), np.searchsorted(written, end)
        mine = np.concatenate([written[b:e] for b, e in zip(low, high, strict=True)])
        return VertexSet(
            tiles, (listed(name, where[mine], high - low, result.dtype),), (listed("out", mine, high - low),),
            (high - low).reshape(-1, 1), lambda sizes: copies([result], result, sizes),
        )

    return tiling
