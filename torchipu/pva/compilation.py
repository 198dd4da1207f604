"""What a report tells of the program, whatever runs when."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from torchipu.pva.contents import Contents
from torchipu.pva.lazy import Lazy
from torchipu.pva.liveness import LivenessProgramStep, Lives
from torchipu.pva.memory import Ipu, Tile, Tiles
from torchipu.pva.programs import ComputeSet, Program, lazily
from torchipu.pva.target import Target
from torchipu.pva.variables import LoweredVariable, Variable
from torchipu.report.facts import rows


class Graph:
    """Sizes of the program, of one replica.

    Args:
        contents: Of the report.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    @property
    def numComputeSets(self) -> int:
        """Compute sets; one that a loop runs again is one."""
        return len(self._contents.compute_sets)

    @property
    def numVars(self) -> int:
        """Variables."""
        return len(self._contents.tables.rows("variables"))

    @property
    def numVertices(self) -> int:
        """Vertices of all compute sets."""
        return sum(row.vertices for row in self._contents.tables.rows("vertices"))

    @property
    def numEdges(self) -> int:
        """Connections of vertices to variables, one for each field of each vertex."""
        return sum(row.vertices * row.fields for row in self._contents.tables.rows("vertices"))

    @property
    def numExchanges(self) -> int:
        """Programs that exchange data, between tiles or between IPUs."""
        return sum(row.type in ("DoExchange", "GlobalExchange") for row in self._contents.programs)

    def __repr__(self) -> str:
        return f"Graph(numComputeSets={self.numComputeSets}, numVars={self.numVars}, numVertices={self.numVertices})"


class Compilation:
    """The program: target, graph, programs, memory and liveness.

    Args:
        contents: Of the report.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._tiles = Tiles(contents)
        self._lives = Lives(contents)
        self.target = Target(contents.tables)
        self.graph = Graph(contents)

    @property
    def computeSets(self) -> Sequence[ComputeSet]:
        """All compute sets, in the order in which they are written down."""
        found = self._contents.compute_sets
        return Lazy(len(found), lambda place: ComputeSet(self._contents, Program(self._contents, found[place])))

    @property
    def programs(self) -> Sequence[Program]:
        """All programs, each before those that it holds; entry points come first, then functions."""
        return lazily(self._contents, self._contents.programs)

    @property
    def tiles(self) -> Sequence[Tile]:
        """The tiles of all IPUs of one replica."""
        return self._tiles.all

    @property
    def ipus(self) -> Sequence[Ipu]:
        """The IPUs of one replica."""
        return self._tiles.ipus

    @cached_property
    def alwaysLiveVariables(self) -> Sequence[Variable]:
        """Variables that are held all the time, with their bytes on all tiles.

        Of a stash, those are the copies but one.
        """
        return [
            Variable(row, _always_bytes(row, row.bytes)) for row in self._contents.tables.rows("variables")
            if not row.off_chip and _always_bytes(row, row.bytes)
        ]

    def alwaysLiveVariablesForTile(self, tile: int) -> Sequence[Variable]:
        """Return the variables that a tile holds all the time, with their bytes there, the largest first.

        Args:
            tile: Counted over all IPUs.

        Raises:
            IndexError: There is no such tile.
        """
        self._contents.check_tile(tile)
        found = []
        for row in self._contents.tables.rows("variables"):
            size = 0 if row.off_chip else _always_bytes(row, self._contents.share_on(row, tile))
            if size:
                found.append(Variable(row, size))
        return sorted(found, key=lambda one: -one.size)

    @property
    def livenessProgramSteps(self) -> Sequence[LivenessProgramStep]:
        """What lives while each compute set runs, in the order in which functions first run."""
        return self._lives.steps

    @cached_property
    def loweredVariables(self) -> Sequence[LoweredVariable]:
        """Every variable on every of its tiles: a long list, whose members are made at each look."""
        shares: tuple[rows.Share, ...] = self._contents.tables.rows("shares")
        variables: tuple[rows.Variable, ...] = self._contents.tables.rows("variables")
        ends = np.fromiter(accumulate(share.end_tile - share.first_tile for share in shares), np.int64)

        def made(place: int) -> LoweredVariable:
            at = int(np.searchsorted(ends, place, side="right"))
            share = shares[at]
            row = variables[share.variable]
            tile = share.end_tile - (int(ends[at]) - place)
            return LoweredVariable(row, share.bytes, row.ipu * self._contents.patterns.num_tiles + tile)

        return Lazy(int(ends[-1]) if ends.size else 0, made)


def _always_bytes(row: rows.Variable, size: int) -> int:
    """Return the bytes among those of all copies of a variable that are held all the time."""
    return size if row.always else size // max(1, row.depth) * (row.depth - 1)
