"""Look-ups of rows by index, in the stages of a plan: parts of tables, then the part that has a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchipu.device.multi_slice import SlicePlan
from torchipu.device.tilings.code import Code
from torchipu.device.tilings.lines import Blocks, Index, Lines, Parts, joined, one_tile, parts_of
from torchipu.device.tilings.moves import copies
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, in_turn, listed
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run

SLICES = "slices"
"""Partials: what each part of a table has for the indices of a vertex; of rows of other parts anything."""
CHOSEN = "chosen"
"""Partials: rows of the part that has them."""


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


LookOf = Callable[[Op], Look]


def looked_up(look_of: LookOf, plan: SlicePlan) -> Tiling:
    """Return the tiling of the first stage: a vertex has a part of the table, and copies rows for its indices.

    Args:
        look_of: Describes an op.
        plan: How it is cut up.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        look, parts = look_of(op), parts_of(runs, plan)
        reads = (look.table.region(parts.rows), *(one.lines.region(parts.named) for one in look.index))
        lines, found = _counts(parts)
        sizes = np.stack((lines, parts.rows.begin, parts.rows.end, parts.named.end - parts.named.begin), 1)
        return VertexSet(
            parts.rows.tiles, reads, (in_turn(SLICES, found, look.tensor.dtype),), sizes,
            lambda sizes: _code_of_part(look, sizes),
        )

    return tiling


def _counts(parts: Parts) -> tuple[Numbers, Numbers]:
    """Return how many lines each vertex has, and how many elements it finds."""
    lines = parts.rows.last - parts.rows.first
    return lines, lines * (parts.named.end - parts.named.begin)


def _code_of_part(look: Look, sizes: Sizes) -> Graph:
    lines, begin, end, places = sizes
    code = Code()
    table = code.part(look.tensor, lines, end - begin)
    number = joined(code, look.index, lines, places)
    if end - begin < len(look.table.steps):  # what is not here is the first row, or the last
        clamped = code.unary("clamp", number, min=begin, max=end - 1)
        number = code.binary("sub", clamped, begin)
    if not look.index[0].lines.is_shared:
        return code.graph([code.gathered(table, number)])
    return code.graph(code.run(
        "aten.index_select.default", [(table.dtype, (lines, places))], {"dim": 1}, self=table, index=number
    ))


def chosen(look_of: LookOf, plan: SlicePlan) -> Tiling:
    """Return the tiling of the second stage: a vertex chooses, for some indices, among what all parts have found.

    Args:
        look_of: Describes an op.
        plan: How it is cut up.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        look, parts = look_of(op), parts_of(runs, plan)
        mine, candidates = _choices(parts)
        reads = (candidates, *(one.lines.region(mine) for one in look.index))
        lines, places = mine.last - mine.first, mine.end - mine.begin
        return VertexSet(
            mine.tiles, reads, (in_turn(CHOSEN, lines * places, look.tensor.dtype),), np.stack((lines, places), 1),
            lambda sizes: _code_of_choice(look, plan, sizes),
        )

    return tiling


def _choices(parts: Parts) -> tuple[Blocks, Region]:
    """Return for which lines and places each vertex chooses, and among what: part by part, line by line."""
    plan = parts.plan
    shape = (plan.line_parts, plan.row_parts, plan.lookup_parts)
    share = np.unravel_index(np.arange(plan.vertices), shape)[1]
    begin = np.minimum(parts.named.begin + share * plan.chosen, parts.named.end)
    end = np.minimum(begin + plan.chosen, parts.named.end)
    has_some = np.flatnonzero(end > begin)
    mine = Blocks(*(column[has_some] for column in (
        parts.named.tiles, parts.named.first, parts.named.last, begin, end,
    )))
    _, found = _counts(parts)
    starts = parts.partials(found)[:-1].reshape(shape)
    places = (parts.named.end - parts.named.begin)[has_some]
    lines, within = mine.last - mine.first, mine.begin - parts.named.begin[has_some]
    where = np.unravel_index(has_some, shape)
    runs = [
        (starts[line, :, lookup][:, None] + np.arange(count) * stride + offset).reshape(-1)
        for line, lookup, count, stride, offset in zip(
            where[0].tolist(), where[2].tolist(), lines.tolist(), places.tolist(), within.tolist(), strict=True,
        )
    ]
    firsts = np.concatenate(([0], np.cumsum(lines * plan.row_parts)))
    counts = np.repeat(mine.end - mine.begin, lines * plan.row_parts)
    heads = np.concatenate(runs)
    return mine, Region(SLICES, heads, counts, np.ones_like(heads), firsts)


def _code_of_choice(look: Look, plan: SlicePlan, sizes: Sizes) -> Graph:
    lines, places = sizes
    code = Code()
    found = code.given(look.tensor.dtype, plan.row_parts, lines * places)
    number = joined(code, look.index, lines, places)
    part = code.quotient(number, plan.rows)
    if look.index[0].lines.is_shared:
        part = code.binary("add", code.full(0, part.dtype, lines, places), part)
    taken = code.gathered(code.turned(found), code.shaped(part, lines * places, 1))
    return code.graph([taken])


def arranged(look_of: LookOf, plan: SlicePlan) -> Tiling:
    """Return the tiling of what follows: rows are laid out in the order of the result.

    Args:
        look_of: Describes an op.
        plan: How it was cut up.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        look, result = look_of(op), op.outputs[0]
        parts = parts_of(one_tile(plan.vertices), plan)
        name, blocks = (CHOSEN, _choices(parts)[0]) if plan.row_parts > 1 else (SLICES, parts.named)
        where = places_of(look.result, blocks, result.num_elements)
        tiles, begin, end = one_a_run(runs)
        counts = end - begin
        write = Region("out", begin, counts, np.ones_like(begin), np.arange(len(begin) + 1))
        return VertexSet(
            tiles, (listed(name, where, counts, look.tensor.dtype),), (write,), counts.reshape(-1, 1),
            lambda sizes: copies([look.tensor], result, sizes),
        )

    return tiling


def places_of(lines: Lines, blocks: Blocks, count: int) -> Numbers:
    """Return which partial each element of a value comes from, -1 where from none: ``[count]``.

    Args:
        lines: Of the value.
        blocks: That vertices have written, one behind the other.
        count: Elements of the value.
    """
    found = np.full(count, -1, np.int64)
    at = 0
    for first, last, begin, end in zip(
        blocks.first.tolist(), blocks.last.tolist(), blocks.begin.tolist(), blocks.end.tolist(), strict=True,
    ):
        elements = (lines.starts[first:last, None] + lines.steps[begin:end]).reshape(-1)
        found[elements] = at + np.arange(len(elements))
        at += len(elements)
    return found
