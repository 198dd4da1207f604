"""Fields of vertices: where each of them lies on its tile, and what has to be moved there first, or away afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchipu.device.tiles.arena import Arena
from torchipu.device.tiles.layout import Held, Spread
from torchipu.ir.region import Numbers, Region
from torchipu.ir.types import DType


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Elements that go from one value on the tiles of an IPU to another.

    Attributes:
        source: Where they come from.
        target: Where they go.
        from_places: ``[elements]``, in bytes of the IPU's memory, of the first slot; negative for padding.
        to_places: ``[elements]``.
        elements: ``[elements]``, the number of each in its source, for messages.
        is_exchange: Whether they come from other tiles; else vertices on their tile copy them.
        pad: The bits of padding.
    """

    source: Held
    target: Held
    from_places: Numbers
    to_places: Numbers
    elements: Numbers
    is_exchange: bool
    pad: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """What the vertices of a set read or write of one value.

    Attributes:
        region: What they say they touch.
        held: What their kernels touch: the value itself where it lies right, else what is gathered for them.
        base: ``[vertices]``, where the part of each begins, in bytes of the IPU's memory, of the first slot.
        num_bytes: ``[vertices]``, how long it is.
        source: The value: the same as ``held`` where nothing is gathered.
        moves: Of what is read, before the vertices run; of what is written, behind.
    """

    region: Region
    held: Held
    base: Numbers
    num_bytes: Numbers
    source: Held
    moves: tuple[Move, ...] = ()

    @property
    def is_in_place(self) -> bool:
        """Whether kernels touch the value itself."""
        return self.held is self.source


@dataclass(slots=True)
class Fields:
    """Makes the fields of the vertices of a set.

    Args:
        tiles: ``[vertices]``.
        arena: Where room is found for what is gathered.
        tile_bytes: Memory of a tile.
        new_owner: Gives the number that marks the bytes of a new value.
    """

    tiles: Numbers
    arena: Arena
    tile_bytes: int
    new_owner: Callable[[str], int]

    def read(self, region: Region, held: Held, elements: Numbers, *, gathered: bool = False) -> Field:
        """Return a field that vertices read.

        Args:
            region: What they read.
            held: Of this value.
            elements: ``region.elements()``, as the value numbers them.
            gathered: Whether to gather it although it lies right.
        """
        counts = region.counts()
        vertex = np.repeat(np.arange(len(counts)), counts)
        base = None if gathered else self._in_place(held, elements, counts, vertex)
        if base is not None:
            return Field(region, held, base, counts * held.element_bytes, held)
        return self._gathered(region, held, elements, counts, vertex)

    def write(self, region: Region, held: Held, elements: Numbers) -> Field:
        """Return a field that vertices write; see ``read``."""
        counts = region.counts()
        vertex = np.repeat(np.arange(len(counts)), counts)
        base = self._in_place(held, elements, counts, vertex)
        if base is not None:
            return Field(region, held, base, counts * held.element_bytes, held)
        made, places = self._room(f"{held.name}.made", held.dtype, counts, vertex)
        targets = held.places(self.tile_bytes)[elements]
        moves = self._moves(made, held, places, targets, elements, held.spread.tile[elements] != self.tiles[vertex])
        return Field(region, made, self._bases(made, counts), counts * made.element_bytes, held, moves)

    # ------------------------------------------------------------------ where values lie
    def _in_place(self, held: Held, elements: Numbers, counts: Numbers, vertex: Numbers) -> Numbers | None:
        """Return where each vertex's part begins where all parts lie on their tiles in order, else None."""
        if len(elements) and elements.min() < 0:
            return None
        if (held.spread.tile[elements] != self.tiles[vertex]).any():
            return None
        at = held.places(self.tile_bytes)[elements]
        together = (np.diff(at) == held.element_bytes) | (np.diff(vertex) != 0)
        if not together.all():
            return None
        base = self.tiles * self.tile_bytes
        first = np.cumsum(counts) - counts
        some = counts > 0
        base[some] = at[first[some]]
        return base

    def _gathered(self, region: Region, held: Held, elements: Numbers, counts: Numbers, vertex: Numbers) -> Field:
        """Gather each element that a vertex reads once, from wherever it lies, and lay out what is read in order."""
        is_given = elements >= 0
        keys = vertex[is_given] * held.num_elements + elements[is_given]
        is_in_order = bool((keys[1:] > keys[:-1]).all())
        distinct, back = (keys, np.arange(len(keys))) if is_in_order else np.unique(keys, return_inverse=True)
        of_vertex, number = np.divmod(distinct, max(held.num_elements, 1))
        received_counts = np.bincount(of_vertex, minlength=len(counts)).astype(np.int64)
        received, to_places = self._room(f"{held.name}.gathered", held.dtype, received_counts, of_vertex)
        received.is_wide = held.is_wide
        from_places = held.places(self.tile_bytes)[number]
        is_remote = held.spread.tile[number] != self.tiles[of_vertex]
        moves = self._moves(held, received, from_places, to_places, number, is_remote)
        if is_in_order and len(keys) == len(elements):
            return Field(
                region, received, self._bases(received, counts), counts * received.element_bytes, held, moves,
            )
        arranged, arranged_places = self._room(f"{held.name}.arranged", held.dtype, counts, vertex)
        arranged.is_wide = held.is_wide
        sources = np.full(len(elements), -1, np.int64)
        sources[is_given] = to_places[back]
        pad = int.from_bytes(np.array(region.pad).astype(held.bits).tobytes(), "little")
        moves += (Move(received, arranged, sources, arranged_places, elements, is_exchange=False, pad=pad),)
        return Field(region, arranged, self._bases(arranged, counts), counts * arranged.element_bytes, held, moves)

    def _room(self, name: str, dtype: DType, counts: Numbers, vertex: Numbers) -> tuple[Held, Numbers]:
        """Return room for values of the vertices, one behind the other, and the place of each element."""
        made = Held(name, dtype, Spread(self.tiles[vertex], np.zeros(0, np.int64), 0), 0, self.new_owner(name))
        begin = self.arena.take(self.tiles, counts * made.element_bytes)
        within = np.arange(len(vertex), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        offset = begin[vertex] + within * made.element_bytes
        made.spread = Spread(self.tiles[vertex], offset, 0)
        return made, made.places(self.tile_bytes)

    def partials(self, name: str, dtype: DType, counts: Numbers) -> tuple[Held, Numbers]:
        """Return room for what vertices hand on, and the place of each element."""
        return self._room(name, dtype, counts, np.repeat(np.arange(len(counts)), counts))

    def _bases(self, made: Held, counts: Numbers) -> Numbers:
        base = self.tiles * self.tile_bytes
        first = np.cumsum(counts) - counts
        some = counts > 0
        base[some] = made.places(self.tile_bytes)[first[some]]
        return base

    def _moves(
        self, source: Held, target: Held, from_places: Numbers, to_places: Numbers, elements: Numbers,
        is_remote: np.ndarray,
    ) -> tuple[Move, ...]:
        """Return an exchange for elements of other tiles, and a copy on the tile for the others."""
        return tuple(
            Move(source, target, from_places[some], to_places[some], elements[some], is_exchange=exchange)
            for exchange, some in ((True, is_remote), (False, ~is_remote)) if some.any()
        )
