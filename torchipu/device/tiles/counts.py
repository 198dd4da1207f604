"""What the cost reader estimates of exchanges beside what the tiles count, set by set, each difference by its rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from torchipu.device.tiles.fields import Field
from torchipu.device.tiles.prepared import PreparedSet
from torchipu.ir.program import Executable, Execute, Gather, Program, VertexGroup, parts_of
from torchipu.ir.region import Numbers


class Rule(Enum):
    """How an estimate comes to differ from the count; in the order in which they are tried."""

    EQUAL = "equal"
    ON_THE_TILE = "the estimate counts operands that lie on the tile already"
    REPEATED = "the estimate counts an element, or padding, as often as the vertices of a tile read it"
    WHOLE_BLOCKS = "the estimate takes every block to be as large as the largest"
    ELSEWHERE = "the estimate takes operands to lie where their readers are, or to be read by fewer tiles"


@dataclass(frozen=True, slots=True)
class Count:
    """Bytes of the busiest tile in one run of a compute set.

    Attributes:
        group: The set.
        estimated: That it receives before the vertices run, by the cost reader.
        received: That it does receive.
        needed: With those that lie on it already.
        read: With those that its vertices read more than once, and padding.
        returned: That it receives behind, of results that were made elsewhere: no estimate counts them.
        vertices: How many of them the fullest tile has, by the program and on the tiles.
    """

    group: VertexGroup
    estimated: int
    received: int
    needed: int
    read: int
    returned: int
    vertices: tuple[int, int]

    @property
    def rule(self) -> Rule:
        """Why estimate and count differ."""
        if self.estimated == self.received:
            return Rule.EQUAL
        if self.estimated < self.received:
            return Rule.ELSEWHERE
        if self.estimated <= self.needed:
            return Rule.ON_THE_TILE
        return Rule.REPEATED if self.estimated <= self.read else Rule.WHOLE_BLOCKS


def estimates(executable: Executable) -> dict[VertexGroup, int]:
    """Return for each vertex group that runs alone in its compute set what its busiest tile receives before."""
    found: dict[VertexGroup, int] = {}
    for function in executable.functions.values():
        gathered = 0
        for step in _in_order(function):
            if isinstance(step, Gather):
                gathered = step.max_tile_bytes
            elif isinstance(step, Execute):
                if len(step.compute_set.groups) == 1:
                    found[step.compute_set.groups[0]] = gathered
                gathered = 0
    return found


def _in_order(program: Program) -> Iterator[Program]:
    yield program
    for part in parts_of(program):
        yield from _in_order(part)


def count(group: VertexGroup, made: PreparedSet, estimated: int, num_tiles: int, tile_bytes: int) -> Count:
    """Return what one run of a compute set moves beside what was estimated.

    Args:
        group: The set.
        made: Its run.
        estimated: Bytes that the busiest tile receives.
        num_tiles: Of the IPU.
        tile_bytes: Memory of a tile.
    """
    received = _arriving(made.reads, num_tiles, tile_bytes, exchanged_only=True)
    needed = _arriving(made.reads, num_tiles, tile_bytes, exchanged_only=False)
    read = np.zeros(num_tiles, np.int64)
    for field in made.reads:
        if field.moves:
            np.add.at(read, made.tiles, field.num_bytes)
    returned = _arriving(made.writes, num_tiles, tile_bytes, exchanged_only=True)
    by_program = np.bincount([tile for tile, _, _ in group.runs.runs], minlength=1)
    on_tiles = np.bincount(made.tiles, minlength=1)
    return Count(
        group, estimated, int(received.max(initial=0)), int(needed.max(initial=0)), int(read.max(initial=0)),
        int(returned.max(initial=0)), (int(by_program.max()), int(on_tiles.max())),
    )


def _arriving(fields: Sequence[Field], num_tiles: int, tile_bytes: int, *, exchanged_only: bool) -> Numbers:
    """Return the bytes that arrive on each tile, each element once."""
    total = np.zeros(num_tiles, np.int64)
    for field in fields:
        for move in field.moves:
            is_first = move.source is field.source or field.held is move.source
            if is_first and (move.is_exchange or not exchanged_only):
                tiles = move.to_places // tile_bytes
                total += np.bincount(tiles, minlength=num_tiles).astype(np.int64) * move.target.element_bytes
    return total
