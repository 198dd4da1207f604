"""Variables of a report, whole, at a moment, and on a tile."""

from __future__ import annotations

from torchipu.report.facts import rows


class Variable:
    """A variable of a program.

    Args:
        row: Of the file.
        size: Bytes; None for those of all its copies on all tiles.
    """

    def __init__(self, row: rows.Variable, size: int | None = None) -> None:
        self._row = row
        self.size = row.bytes if size is None else size

    @property
    def _id(self) -> int:
        return self._row.number

    @property
    def name(self) -> str:
        """As in the text of the program."""
        return self._row.name

    @property
    def type(self) -> str:
        """Of its elements."""
        return self._row.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(int(size) for size in self._row.shape.split(",") if size)

    @property
    def isAlwaysLive(self) -> bool:
        """Whether it is held all the time."""
        return self._row.always

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.size} B)"


class LoweredVariable(Variable):
    """A variable as it lies on one tile.

    Args:
        row: Of the file.
        size: Its bytes on the tile.
        tile: Counted over all IPUs.
    """

    def __init__(self, row: rows.Variable, size: int, tile: int) -> None:
        super().__init__(row, size)
        self.tile = tile

    @property
    def offset(self) -> int | None:
        """Address in the tile; None where it lies in Streaming Memory."""
        return None if self._row.off_chip else self._row.address
