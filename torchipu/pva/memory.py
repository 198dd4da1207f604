"""Tiles and IPUs of a report, and what fills them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from torchipu.pva.contents import Contents
from torchipu.pva.lazy import Lazy
from torchipu.pva.programs import VertexInstances, VertexType
from torchipu.report.facts import rows

CATEGORIES = {
    "weights": "variable", "optimiser state": "variable", "stashes": "variable", "temporaries": "variable",
    "streams and links": "message", "code": "vertexCode", "exchange code": "internalExchangeCode",
    "control": "controlCode", "vertex state": "vertexInstanceState", "stacks": "stack",
}
"""Poplar's name of each category of torchipu's; a gap is none."""
NAMES = (
    "constant", "controlCode", "controlId", "controlTable", "copyDescriptor", "globalExchangeCode",
    "globalExchangePacketHeader", "globalMessage", "hostExchangeCode", "hostExchangePacketHeader", "hostMessage",
    "instrumentationResults", "internalExchangeCode", "message", "multiplePrograms", "outputEdge", "rearrangement",
    "sharedCodeStorage", "sharedDataStorage", "stack", "variable", "vectorListDescriptor", "vertexCode",
    "vertexFieldData", "vertexInstanceState",
)
"""Poplar's categories; those that torchipu does not tell apart are 0."""
GAP = "gap"


class Total:
    """Bytes of a tile at its peak.

    Args:
        includingGaps: Up to which it is filled.
        excludingGaps: In use.
    """

    def __init__(self, includingGaps: int, excludingGaps: int) -> None:
        self.includingGaps = includingGaps
        self.excludingGaps = excludingGaps

    def __repr__(self) -> str:
        return f"Total(includingGaps={self.includingGaps}, excludingGaps={self.excludingGaps})"


class CategoryBytes:
    """Bytes of one category.

    Args:
        total: In use.
    """

    def __init__(self, total: int) -> None:
        self.total = total

    def __repr__(self) -> str:
        return f"CategoryBytes({self.total})"


class ByCategory:
    """Bytes by Poplar's categories, each an attribute, together ``total.excludingGaps``.

    Args:
        found: Bytes by torchipu's categories, without the gap.
    """

    def __init__(self, found: Mapping[str, int]) -> None:
        self._bytes = dict.fromkeys(NAMES, 0)
        for name, count in found.items():
            self._bytes[CATEGORIES.get(name, "variable")] += count

    def __getattr__(self, name: str) -> CategoryBytes:
        if name.startswith("_") or name not in self._bytes:
            raise AttributeError(f"there is no category {name!r} of memory: they are {', '.join(NAMES)}")
        return CategoryBytes(self._bytes[name])

    def __dir__(self) -> list[str]:
        return list(NAMES)

    def __repr__(self) -> str:
        return f"ByCategory({', '.join(f'{name}={count}' for name, count in self._bytes.items() if count)})"


class TileMemory:
    """The memory of a tile at its peak."""

    def __init__(self, contents: Contents, row: rows.Tile, by_category: Mapping[str, int]) -> None:
        self._contents = contents
        self._row = row
        self.byCategory = dict(by_category)
        """Bytes by torchipu's own categories, finer than Poplar's, with ``gap``."""

    @property
    def total(self) -> Total:
        """Bytes in all."""
        return Total(self._row.including_gaps, self._row.excluding_gaps)

    @property
    def overflowed(self) -> bool:
        """Whether the program needs more than a tile has."""
        return bool(self._row.including_gaps > self._contents.tables.number("tile_memory_bytes"))

    @property
    def alwaysLiveBytes(self) -> int:
        """Bytes that are held all the time."""
        return self._row.always

    @property
    def notAlwaysLiveBytes(self) -> int:
        """The other bytes in use at the peak."""
        return self._row.excluding_gaps - self._row.always

    @property
    def category(self) -> ByCategory:
        """Bytes by Poplar's categories."""
        return ByCategory({name: count for name, count in self.byCategory.items() if name != GAP})

    @property
    def vertices(self) -> list[VertexInstances]:
        """Vertices that run on the tile, by type, each compute set counted once."""
        found = []
        for row in self._contents.tables.rows("codelets"):
            if row.ipu == self._row.ipu:
                count = int(self._contents.patterns.on_ipu(row.by_tile)[self._row.tile])
                if count:
                    found.append(VertexInstances(VertexType(row.codelet), count))
        return found


class Tile:
    """A tile.

    Args:
        id: Counted over all IPUs.
        ipu: Its IPU.
        memory: At its peak.
    """

    def __init__(self, id: int, ipu: int, memory: TileMemory) -> None:
        self.id = id
        self.ipu = ipu
        self.memory = memory

    def __repr__(self) -> str:
        return f"Tile({self.id}, {self.memory.total!r})"


class Ipu:
    """An IPU of one replica.

    Args:
        id: From 0.
        tiles: Its tiles.
    """

    def __init__(self, id: int, tiles: Sequence[Tile]) -> None:
        self.id = id
        self.tiles = tiles

    def __repr__(self) -> str:
        return f"Ipu({self.id})"


class Tiles:
    """The tiles of all IPUs in order.

    Args:
        contents: Of the report.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    @cached_property
    def _rows(self) -> list[rows.Tile]:
        return sorted(self._contents.tables.rows("tiles"), key=lambda row: (row.ipu, row.tile))

    @cached_property
    def _categories(self) -> dict[tuple[int, int], dict[str, int]]:
        found: dict[tuple[int, int], dict[str, int]] = {}
        for row in self._contents.tables.rows("tile_categories"):
            found.setdefault((row.ipu, row.tile), {})[row.category] = row.bytes
        return found

    @cached_property
    def all(self) -> Lazy[Tile]:
        """All of them."""
        return Lazy(len(self._rows), self._tile)

    @cached_property
    def ipus(self) -> list[Ipu]:
        """The IPUs with theirs."""
        size = self._contents.patterns.num_tiles
        return [
            Ipu(ipu, Lazy(size, lambda place, begin=ipu * size: self._tile(begin + place)))  # type: ignore[misc]
            for ipu in range(self._contents.patterns.num_ipus)
        ]

    def _tile(self, place: int) -> Tile:
        row = self._rows[place]
        memory = TileMemory(self._contents, row, self._categories.get((row.ipu, row.tile), {}))
        return Tile(row.ipu * self._contents.patterns.num_tiles + row.tile, row.ipu, memory)
