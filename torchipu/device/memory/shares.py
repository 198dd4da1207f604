"""What variables and vertices put on each tile."""

from __future__ import annotations

import numpy as np

from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import Variable, VertexGroup

TileBytes = np.ndarray  # int64 [num_tiles], bytes
ALIGNMENT_BYTES = 8  # 64-bit loads


class Shares:
    """Bytes by tile, each worked out once.

    Args:
        num_tiles: Tiles of an IPU.
    """

    def __init__(self, num_tiles: int) -> None:
        self.num_tiles = num_tiles
        self._elements: dict[int, TileBytes] = {}
        self._bytes: dict[tuple[int, int], TileBytes] = {}
        self._extents: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._numbers: dict[int, int] = {}
        self._number_of_runs: dict[tuple[tuple[int, int, int], ...], int] = {}

    def of_mapping(self, mapping: TileMapping, element_bytes: int) -> TileBytes:
        """Return the bytes that a mapping puts on each tile."""
        key = (id(mapping), element_bytes)
        if key not in self._bytes:
            self._bytes[key] = self._elements_by_tile(mapping) * element_bytes
        return self._bytes[key]

    def _elements_by_tile(self, mapping: TileMapping) -> TileBytes:
        key = id(mapping)
        if key not in self._elements:
            count = np.zeros(self.num_tiles, np.int64)
            if mapping.runs:
                runs = np.array(mapping.runs, np.int64)
                np.add.at(count, runs[:, 0], runs[:, 2] - runs[:, 1])
            self._elements[key] = count
        return self._elements[key]

    def of(self, variable: Variable) -> TileBytes:
        """Return the bytes of one copy of a variable on each tile."""
        return self.of_mapping(variable.mapping, variable.dtype.device_bytes)

    def on_tiles_of(self, group: VertexGroup) -> TileBytes:
        """Return 1 for each tile that runs vertices of a group, 0 for the others."""
        return self.of_mapping(group.runs, 1) > 0

    def extent(self, variable: Variable) -> tuple[int, int, int]:
        """Return the first tile of a variable, the tile after its last, and the most bytes that one holds."""
        key = (id(variable.mapping), variable.dtype.device_bytes)
        if key not in self._extents:
            share = self.of(variable)
            used = np.flatnonzero(share)
            self._extents[key] = (int(used[0]), int(used[-1]) + 1, int(share.max())) if used.size else (0, 1, 0)
        return self._extents[key]

    def number(self, mapping: TileMapping) -> int:
        """Return a number that equal mappings have in common."""
        key = id(mapping)
        if key not in self._numbers:
            self._numbers[key] = self._number_of_runs.setdefault(mapping.runs, len(self._number_of_runs))
        return self._numbers[key]
