"""What a compute set takes of each tile: its cycles, and how many vertices it runs."""

from __future__ import annotations

import numpy as np

from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import ComputeSet

ByTile = np.ndarray  # int64 [num_tiles]


class TileWork:
    """Work by tile, that of each mapping found once.

    Args:
        num_tiles: Tiles of an IPU.
    """

    def __init__(self, num_tiles: int) -> None:
        self.num_tiles = num_tiles
        self._elements: dict[int, tuple[TileMapping, ByTile]] = {}
        self._vertices: dict[int, tuple[TileMapping, ByTile]] = {}

    def cycles(self, compute_set: ComputeSet) -> ByTile:
        """Return the cycles of each tile in one run.

        The vertices of a codelet take as many as their share of the work; the slowest tile takes all of them. Those of
        several codelets run beside each other.

        Args:
            compute_set: Of an IPU with so many tiles.
        """
        total = np.zeros(self.num_tiles, np.int64)
        for group in compute_set.groups:
            work = self._of(self._elements, group.runs)
            most = int(work.max())
            if most:
                # In Python's numbers where the product would not fit.
                if most * group.cycles < 2**62:
                    np.maximum(total, -(-work * group.cycles // most), out=total)
                else:
                    np.maximum(total, np.ceil(work / most * group.cycles).astype(np.int64), out=total)
        return total

    def vertices(self, runs: TileMapping) -> ByTile:
        """Return how many vertices each tile runs."""
        return self._of(self._vertices, runs)

    def _of(self, known: dict[int, tuple[TileMapping, ByTile]], runs: TileMapping) -> ByTile:
        # The mapping is kept with what was found of it, so that no other one gets its address.
        if id(runs) not in known:
            count = np.zeros(self.num_tiles, np.int64)
            if runs.runs:
                table = np.array(runs.runs, np.int64)
                np.add.at(count, table[:, 0], 1 if known is self._vertices else table[:, 2] - table[:, 1])
            known[id(runs)] = (runs, count)
        return known[id(runs)][1]
