"""Memory of the tiles that no variable lies in: for what the vertices of an op gather, and hand on to each other."""

from __future__ import annotations

import numpy as np

from torchipu.device.tiles.layout import spread_of
from torchipu.ir.program import Executable
from torchipu.ir.region import Numbers

ALIGNMENT_BYTES = 8  # 64-bit loads


class Arena:
    """Hands out the memory above all variables of an IPU.

    Args:
        bottom: ``[tiles]``, bytes of each tile that are taken.
        tile_bytes: Memory of a tile.
    """

    def __init__(self, bottom: Numbers, tile_bytes: int) -> None:
        self.height = bottom.copy()
        self.tile_bytes = tile_bytes

    def take(self, tiles: Numbers, num_bytes: Numbers) -> Numbers:
        """Return where on its tile each of some stretches begins.

        Args:
            tiles: ``[stretches]``.
            num_bytes: ``[stretches]``.

        Raises:
            MemoryError: A tile has no more memory; the argument is its number.
        """
        sizes = -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        order = np.argsort(tiles, kind="stable")
        ends = np.cumsum(sizes[order])
        starts = ends - sizes[order]
        heads = np.searchsorted(tiles[order], tiles[order], side="left")
        begin = np.empty_like(sizes)
        begin[order] = self.height[tiles[order]] + starts - starts[heads]
        np.add.at(self.height, tiles, sizes)
        if self.height.max(initial=0) > self.tile_bytes:
            raise MemoryError(int(self.height.argmax()))
        return begin


def bottoms(executable: Executable, num_tiles: int) -> list[Numbers]:
    """Return for each IPU how many bytes of each tile lie below the end of the last variable there."""
    taken = [np.zeros(num_tiles, np.int64) for _ in range(executable.num_ipus)]
    tiles_of: dict[int, Numbers] = {}
    for variable in executable.variables:
        if variable.name not in executable.addresses or not variable.mapping.runs:
            continue
        key = id(variable.mapping)
        if key not in tiles_of:
            tiles_of[key] = np.unique(spread_of(variable.mapping, 1).tile)
        here, tiles = taken[variable.ipu], tiles_of[key]
        here[tiles] = np.maximum(here[tiles], executable.addresses[variable.name][1])
    return [-(-here // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for here in taken]
