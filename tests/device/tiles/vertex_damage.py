"""Kinds of damage to vertices: to what they say they touch, to their code, and to what is moved for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from torchipu.device.tiles.fields import Field
from torchipu.device.tiles.prepared import PreparedSet
from torchipu.ir.graph import Graph, Op
from torchipu.ir.region import Region, listed
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, VertexSet

OfVertices = Callable[[VertexSet], VertexSet | None]
"""Returns the damaged vertices; None where these cannot be damaged so."""
OfFields = Callable[[PreparedSet, int], PreparedSet | None]
"""The same of prepared ones, given the bytes of a tile."""


def _with(
    region: Region, change: Callable[[np.ndarray, int], np.ndarray], *, everywhere: bool = False,
) -> Region | None:
    """Return a region of which the part of the first vertex, or of each, is another; None where all are the same."""
    ends = np.cumsum(region.counts())
    parts = np.split(region.elements(), ends[:-1])
    most, is_changed = int(region.elements().max(initial=-1)), False
    for vertex, part in enumerate(parts):
        if len(part) and (everywhere or not is_changed):
            parts[vertex] = change(part.copy(), most)
            is_changed |= not np.array_equal(part, parts[vertex])
    counts = np.array([len(part) for part in parts])
    return listed(region.name, np.concatenate(parts), counts, region.dtype, region.pad) if is_changed else None


def reads(
    change: Callable[[np.ndarray, int], np.ndarray], *, at_least: int = 1, everywhere: bool = False,
) -> OfVertices:
    def damage(vertices: VertexSet) -> VertexSet | None:
        for place, region in enumerate(vertices.reads):
            if region.counts().max(initial=0) < at_least or region.elements().max(initial=0) < 1:
                continue
            changed = _with(region, change, everywhere=everywhere)
            if changed is not None:
                return replace(vertices, reads=(*vertices.reads[:place], changed, *vertices.reads[place + 1 :]))
        return None

    return damage


def writes(change: Callable[[np.ndarray, int], np.ndarray]) -> OfVertices:
    def damage(vertices: VertexSet) -> VertexSet | None:
        if not vertices.writes:
            return None
        changed = _with(vertices.writes[0], change)
        return None if changed is None else replace(vertices, writes=(changed, *vertices.writes[1:]))

    return damage


def shifted(part: np.ndarray, most: int) -> np.ndarray:
    return part + 1 if part.max() < most else part - 1 if part.min() > 0 else np.roll(part, 1)


def beyond(part: np.ndarray, most: int) -> np.ndarray:
    part[-1] = 1 << 30
    return part


def turned_round(part: np.ndarray, most: int) -> np.ndarray:
    return part[::-1]


def stuttering(part: np.ndarray, most: int) -> np.ndarray:
    part[-1] = part[0]
    return part


def shorter(part: np.ndarray, most: int) -> np.ndarray:
    return part[:-1]


def longer(part: np.ndarray, most: int) -> np.ndarray:
    return np.append(part, part[-1])


def _chosen(region: Region, order: np.ndarray) -> Region:
    """Return a region with the parts of some vertices, in an order."""
    counts, elements = region.counts(), region.elements()
    ends = np.cumsum(counts)
    parts = [elements[ends[one] - counts[one] : ends[one]] for one in order]
    return listed(region.name, np.concatenate([np.zeros(0, np.int64), *parts]), counts[order], region.dtype, region.pad)


def _some(vertices: VertexSet, order: np.ndarray) -> VertexSet:
    return replace(
        vertices, tiles=vertices.tiles[order], sizes=vertices.sizes[order],
        reads=tuple(_chosen(one, order) for one in vertices.reads),
        writes=tuple(_chosen(one, order) for one in vertices.writes),
    )


def left_out(vertices: VertexSet) -> VertexSet | None:
    return _some(vertices, np.arange(1, len(vertices.tiles))) if len(vertices.tiles) > 1 else None


def twice(vertices: VertexSet) -> VertexSet | None:
    return _some(vertices, np.append(np.arange(len(vertices.tiles)), 0))


def on_no_tile(vertices: VertexSet) -> VertexSet | None:
    return replace(vertices, tiles=vertices.tiles + 1_000_000)


EITHER_WAY = ("add", "mul", "maximum", "eq")
"""Ops to which it is all the same which operand comes first."""


def with_operands_swapped(vertices: VertexSet) -> VertexSet | None:
    if len(vertices.reads) != 2 or not np.array_equal(vertices.reads[0].counts(), vertices.reads[1].counts()):
        return None
    sizes = tuple(vertices.sizes[0].tolist())
    is_same = vertices.reads[0].name == vertices.reads[1].name
    if is_same or any(op.kind in EITHER_WAY for op in vertices.code(sizes).ops):
        return None
    return replace(vertices, reads=vertices.reads[::-1])


def with_results_of_others(vertices: VertexSet) -> VertexSet | None:
    counts = vertices.writes[0].counts()
    # Partials of one sum may be exchanged for each other.
    if len(counts) < 2 or counts[0] != counts[1] or vertices.writes[0].dtype is not None:
        return None
    order = np.array([1, 0, *range(2, len(counts))])
    return replace(vertices, writes=tuple(_chosen(one, order) for one in vertices.writes))


def without_a_result(vertices: VertexSet) -> VertexSet | None:
    return replace(vertices, writes=vertices.writes[:-1])


def of_partials_that_nobody_made(vertices: VertexSet) -> VertexSet | None:
    first = vertices.reads[0] if vertices.reads else None
    if first is None:
        return None
    return replace(vertices, reads=(replace(first, name="lost"), *vertices.reads[1:]))


def with_untyped_partials(vertices: VertexSet) -> VertexSet | None:
    first = vertices.writes[0]
    if first.dtype is None:
        return None
    return replace(vertices, writes=(replace(first, dtype=None), *vertices.writes[1:]))


def with_another_pad(vertices: VertexSet) -> VertexSet | None:
    for place, region in enumerate(vertices.reads):
        if (region.elements() < 0).any():
            other = replace(region, pad=7.0)
            return replace(vertices, reads=(*vertices.reads[:place], other, *vertices.reads[place + 1 :]))
    return None


def with_other_code(vertices: VertexSet) -> VertexSet | None:
    """Let vertices give the negative of a result."""

    def code(sizes: Sizes) -> Graph:
        whole = vertices.code(sizes)
        result = whole.outputs[0]
        negative = replace(result, name=f"{result.name}.negative")
        op = Op("neg", (result,), (negative,), {}, "aten.neg.default", ("self",))
        return replace(whole, ops=(*whole.ops, op), outputs=(negative, *whole.outputs[1:]))

    sizes = tuple(vertices.sizes[0].tolist()) if len(vertices.sizes) else ()
    floats = (DType.FLOAT, DType.HALF)
    return replace(vertices, code=code) if vertices.code(sizes).outputs[0].dtype in floats else None


OF_VERTICES: dict[str, OfVertices] = {
    "a read is shifted by one": reads(shifted, everywhere=True),
    "a write is shifted by one": writes(shifted),
    "a read reaches beyond its value": reads(beyond),
    "a write reaches beyond its value": writes(beyond),
    "elements are read in another order": reads(turned_round, at_least=2, everywhere=True),
    "results are written in another order": writes(turned_round),
    "an element is read in the place of another": reads(stuttering, at_least=2, everywhere=True),
    "an element is written in the place of another": writes(stuttering),
    "an element less is read": reads(shorter),
    "an element less is written": writes(shorter),
    "an element more is read": reads(longer),
    "an element more is written": writes(longer),
    "a vertex is left out": left_out,
    "a vertex runs twice": twice,
    "vertices lie on no tile": on_no_tile,
    "operands of vertices are swapped": with_operands_swapped,
    "vertices write each other's results": with_results_of_others,
    "a result is not written": without_a_result,
    "partials are read that nobody made": of_partials_that_nobody_made,
    "partials have no type": with_untyped_partials,
    "the padding has another value": with_another_pad,
    "vertices compute something else": with_other_code,
}


def moved(chosen: Callable[[PreparedSet], tuple[Field, ...]], *, is_exchange: bool | None, change: str) -> OfFields:
    """Return a kind of damage to what is moved for vertices.

    Args:
        chosen: The fields, of which the first with such a move is damaged.
        is_exchange: Whether between tiles or on one; None for either.
        change: ``dropped``, ``to another tile``, ``from the element beside`` or ``to the element beside``.
    """

    def damage(made: PreparedSet, tile_bytes: int) -> PreparedSet | None:
        for field in chosen(made):
            for place, move in enumerate(field.moves):
                if is_exchange is not None and move.is_exchange is not is_exchange:
                    continue
                size = move.target.element_bytes
                if change == "dropped":
                    moves = (*field.moves[:place], *field.moves[place + 1 :])
                else:
                    source, target = move.from_places, move.to_places
                    if change == "from the element beside":
                        source = np.where(source >= 0, source + size, source)
                    step = {"to another tile": tile_bytes, "to the element beside": size}.get(change, 0)
                    other = replace(move, from_places=source, to_places=target + step)
                    moves = (*field.moves[:place], other, *field.moves[place + 1 :])
                changed = replace(field, moves=moves)
                return replace(
                    made, reads=tuple(changed if one is field else one for one in made.reads),
                    writes=tuple(changed if one is field else one for one in made.writes),
                )
        return None

    return damage


def astray(chosen: Callable[[PreparedSet], tuple[Field, ...]], step: int) -> OfFields:
    """Return a kind of damage to where kernels find a field: so many bytes further."""

    def damage(made: PreparedSet, tile_bytes: int) -> PreparedSet | None:
        for field in chosen(made):
            if (field.num_bytes > 0).any():
                changed = replace(field, base=field.base + step)
                return replace(
                    made, reads=tuple(changed if one is field else one for one in made.reads),
                    writes=tuple(changed if one is field else one for one in made.writes),
                )
        return None

    return damage


def _read(made: PreparedSet) -> tuple[Field, ...]:
    return made.reads


def _written(made: PreparedSet) -> tuple[Field, ...]:
    return made.writes


OF_FIELDS: dict[str, OfFields] = {
    "an exchange is dropped": moved(_read, is_exchange=True, change="dropped"),
    "an exchange goes to another tile": moved(_read, is_exchange=True, change="to another tile"),
    "an exchange brings the element beside": moved(_read, is_exchange=True, change="from the element beside"),
    "an exchange puts elements beside their place": moved(_read, is_exchange=True, change="to the element beside"),
    "a copy on the tile is dropped": moved(_read, is_exchange=False, change="dropped"),
    "a copy on the tile brings the element beside": moved(_read, is_exchange=False, change="from the element beside"),
    "results are not brought home": moved(_written, is_exchange=None, change="dropped"),
    "results are brought to another tile": moved(_written, is_exchange=None, change="to another tile"),
    "results are brought to the element beside": moved(_written, is_exchange=None, change="to the element beside"),
    "kernels read beside their field": astray(_read, 4),
    "kernels write beside their field": astray(_written, 4),
    "kernels read the memory of another tile": astray(_read, 638_976),
}
