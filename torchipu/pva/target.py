"""The machine of a report."""

from __future__ import annotations

from torchipu.pva.enums import Architecture, TargetType, architecture_of
from torchipu.pva.tables import Tables


class Target:
    """The machine that a program was compiled for, all replicas together.

    Args:
        tables: Of the report.
    """

    Type = TargetType

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @property
    def type(self) -> TargetType:
        """A model of the IPU."""
        return TargetType.IpuModel

    @property
    def architecture(self) -> Architecture:
        """Generation of the IPU."""
        return architecture_of(str(self._tables.fact("target")))

    @property
    def numReplicas(self) -> int:
        """Replicas of the program."""
        return int(self._tables.number("replicas"))

    @property
    def ipusPerReplica(self) -> int:
        """IPUs of each replica."""
        return int(self._tables.number("num_ipus"))

    @property
    def tilesPerIpu(self) -> int:
        """Tiles of an IPU."""
        return int(self._tables.number("num_tiles"))

    @property
    def tilesPerReplica(self) -> int:
        """Tiles of each replica."""
        return self.tilesPerIpu * self.ipusPerReplica

    @property
    def numIPUs(self) -> int:
        """IPUs of all replicas."""
        return self.ipusPerReplica * self.numReplicas

    @property
    def numTiles(self) -> int:
        """Tiles of all replicas."""
        return self.tilesPerIpu * self.numIPUs

    @property
    def bytesPerTile(self) -> int:
        """Memory of a tile."""
        return int(self._tables.number("tile_memory_bytes"))

    @property
    def bytesPerIPU(self) -> int:
        """Memory of an IPU."""
        return self.bytesPerTile * self.tilesPerIpu

    @property
    def memoryPerReplica(self) -> int:
        """Memory of the tiles of each replica."""
        return self.bytesPerTile * self.tilesPerReplica

    @property
    def totalMemory(self) -> int:
        """Memory of the tiles of all replicas."""
        return self.bytesPerTile * self.numTiles

    @property
    def clockFrequency(self) -> float:
        """Cycles a second."""
        return float(self._tables.number("clock_hz"))

    def __repr__(self) -> str:
        return f"Target({self._tables.fact('title')!r}, {self.numIPUs} IPUs)"
