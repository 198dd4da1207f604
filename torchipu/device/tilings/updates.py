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
from torchipu.device.tilings.partials import Reduction
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, in_turn, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run

BASE = "base"
"""Partials: what a result holds before rows are written."""
SUMS = "sums"
"""Partials: rows of a part of the table as they are after its updates; or, of some indices, what they are joined to."""
GROUPS = "groups"
"""Partials: partial results of several parts together, where there are many."""
TOTALS = "totals"
"""Partials: rows as they are after all updates, where there were partial results."""
COUNTS = ("", ".counts")
"""What ends the name of each value that a part has of an element: see `Reduction.tables`."""

Join = Callable[[Code, Tensor, Tensor, "Tensor | None", int], Tensor]
Taken = Callable[[Code, Tensor, "Tensor | None", int], "tuple[Tensor, Tensor | None]"]


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
        reduction: How results of some of the indices each are joined; None where they cannot be.
        taken: ``(code, number, source or None, place of the first row) -> number, source``: what these are made of,
            without what the op leaves out, as it scales it; None where that is the source as it is.
    """

    result: Lines
    index: tuple[Index, ...]
    source: Lines | None
    tensor: Tensor | None
    join: Join
    has_old: bool = True
    reduction: Reduction | None = None
    taken: Taken | None = None


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

    Where indices are split too, a vertex joins rows that belong to some of them.

    Args:
        update_of: Describes an op.
        plan: How it is cut up.
        in_place: Whether what there was before is read, and rows are written, where the table lies.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        update, result = update_of(op), op.outputs[0]
        parts = parts_of(runs, plan)
        rows, named = parts.rows, parts.named
        dtypes: tuple[DType, ...] = (result.dtype,)
        if plan.lookup_parts > 1 and update.reduction is not None:
            dtypes = update.reduction.dtypes(result.dtype)
        reads = [one.lines.region(named) for one in update.index]
        if plan.lookup_parts == 1:
            base = replace(update.result, name="self" if in_place else BASE)
            reads.insert(0, base.region(rows, around=plan.row_parts > 1, dtype=None if in_place else result.dtype))
        if update.source is not None:
            reads.append(update.source.region(named, whole=update.source.is_shared))
        lines = rows.last - rows.first
        sizes = np.stack((lines, rows.begin, rows.end, named.end - named.begin), 1)
        code = _code_of_part if plan.lookup_parts > 1 else _code_of_update
        held = lines * (rows.end - rows.begin)
        writes = [in_turn(SUMS + end, held, dtype) for end, dtype in zip(COUNTS, dtypes, strict=False)]
        if in_place and plan.lookup_parts == 1:
            writes = [update.result.region(rows)]
        return VertexSet(
            rows.tiles, tuple(reads), tuple(writes), sizes,
            lambda sizes: code(update, result, plan.row_parts > 1, sizes),
        )

    return tiling


def _code_of_update(update: Update, result: Tensor, is_part: bool, sizes: Sizes) -> Graph:
    lines, begin, end, named = sizes
    code = Code()
    base = code.part(result, lines, end - begin + 2 * is_part)
    number = _within(code, joined(code, update.index, lines, named), is_part, begin, end)
    made = update.join(code, base, number, _source(code, update, lines, named), begin - 1 if is_part else 0)
    return code.graph([code.sliced(made, 1, 1, end - begin + 1) if is_part else made])


def _code_of_part(update: Update, result: Tensor, is_part: bool, sizes: Sizes) -> Graph:
    lines, begin, end, named = sizes
    code, reduction, places = Code(), update.reduction, end - begin + 2
    assert reduction is not None
    number = _within(code, joined(code, update.index, lines, named), True, begin, end)
    source = _source(code, update, lines, named)
    if update.taken is not None:
        number, source = update.taken(code, number, source, begin - 1)
    dtype = reduction.dtypes(result.dtype)[0]
    if reduction.kind == "last":
        made = [update.join(code, reduction.start(code, dtype, lines, places), number, source, begin - 1)]
    else:
        assert source is not None
        made = [reduction.made(code, places, number, source, dtype)]
    if reduction.is_counted:
        ones, none = code.full(1, DType.INT, lines, named), code.full(0, DType.INT, lines, places)
        made.append(code.added_by_index(none, number, ones))
    return code.graph([code.sliced(one, 1, 1, end - begin + 1) for one in made])


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
    """Return the tiling of a level that joins partial results: all that have the same rows share these out among them.

    Args:
        update_of: Describes an op.
        plan: How it is cut up.
        level: 0 for those of groups of parts, 1 for all, with what was there before.
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
        table = np.arange(plan.vertices) // plan.lookup_parts
        ends = np.concatenate(([0], np.cumsum(count[:: plan.lookup_parts])))
        first = ends[table] * together + group * plan.group * count
        summed = summed[mine]
        number = np.arange(summed.sum()) - np.repeat(np.cumsum(summed) - summed, summed)
        heads = np.repeat((first + begin)[mine], summed) + number * np.repeat(count[mine], summed)
        firsts = np.concatenate(([0], np.cumsum(summed)))
        lengths, steps = np.repeat(here[mine], summed), np.ones_like(heads)
        reduction = update.reduction
        assert reduction is not None
        tables = list(zip(COUNTS, reduction.dtypes(result.dtype), strict=False))
        reads = [Region(name + end, heads, lengths, steps, firsts, dtype) for end, dtype in tables]
        writes = [in_turn(GROUPS + end, here[mine], dtype) for end, dtype in tables]
        if level == 1:
            elements = _elements_of(update, parts.rows, plan)
            base, dtype = ("self", None) if in_place else (BASE, result.dtype)
            reads.append(listed(base, elements, here[mine], dtype))
            whole = in_turn(TOTALS, here[mine], result.dtype)
            writes = [listed("out", elements, here[mine]) if in_place else whole]
        return VertexSet(
            parts.rows.tiles[mine], tuple(reads), tuple(writes), np.stack((summed, here[mine]), 1),
            lambda sizes: _code_of_parts(reduction, result, level, sizes),
        )

    return tiling


def _elements_of(update: Update, rows: Blocks, plan: SlicePlan) -> Numbers:
    """Return the elements of the rows of each part of the table in turn."""
    columns = (rows.first, rows.last, rows.begin, rows.end)
    return np.concatenate([
        (update.result.starts[first:last, None] + update.result.steps[low:high]).reshape(-1)
        for first, last, low, high in zip(*(one[:: plan.lookup_parts].tolist() for one in columns), strict=True)
    ])


def _code_of_parts(reduction: Reduction, result: Tensor, level: int, sizes: Sizes) -> Graph:
    parts, count = sizes
    code = Code()
    values, *counts = (code.given(dtype, parts, count) for dtype in reduction.dtypes(result.dtype))
    together = reduction.joined(code, values, counts[0] if counts else None)
    if level == 0:
        return code.graph(together)
    base = code.part(result, count, 1)
    return code.graph([reduction.finished(code, base, together[0], together[1] if counts else None)])


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
