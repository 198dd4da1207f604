"""The memory of the tiles of one IPU: bytes, and who has written each of them."""

from __future__ import annotations

import mmap

import numpy as np

from torchipu._kernels.abi import call_kernel
from torchipu._kernels.table.tile import TILE_CHECK, TILE_MOVE, TILE_OWN, TileMoveInts, TileOwnInts
from torchipu.ir.region import Numbers

NOBODY = 0
"""Owner of bytes that nobody has written, or whose value is lost."""


class TileMemory:
    """Bytes of all tiles of an IPU of one replica, one tile behind the other.

    Pages that nothing touches take no memory of the host.

    Args:
        num_tiles: Tiles of the IPU.
        tile_bytes: Memory of each.
    """

    def __init__(self, num_tiles: int, tile_bytes: int) -> None:
        total = num_tiles * tile_bytes
        self.tile_bytes = tile_bytes
        self.bytes = np.frombuffer(_untouched(total), np.uint8)
        self.owners = np.frombuffer(_untouched(4 * total), np.uint32)
        self.base = self.bytes.ctypes.data
        self._owners_at = self.owners.ctypes.data
        self._fault = np.zeros(1, np.int64)

    def move(
        self, to_places: Numbers, to_owner: int, source: TileMemory, from_places: Numbers, from_owner: int,
        element_bytes: int, pad: int = 0,
    ) -> int:
        """Move elements here; see ``TILE_MOVE``.

        Args:
            to_places: Where each goes, in bytes.
            to_owner: Whose the bytes are afterwards.
            source: The memory of the IPU that they come from.
            from_places: Where each comes from; negative for what has no place.
            from_owner: Whose the bytes must be.
            element_bytes: Of each element.
            pad: The bits of what has no place.

        Returns:
            The first element that is not the owner's, or -1; nothing behind it has moved.
        """
        call_kernel(
            TILE_MOVE,
            [self.base, self._owners_at, self._fault.ctypes.data, source.base, source._owners_at,
             to_places.ctypes.data, from_places.ctypes.data],
            TileMoveInts(len(to_places), element_bytes, to_owner, from_owner, pad),
        )
        return int(self._fault[0])

    def own(self, begin: Numbers, num_bytes: Numbers, owner: int) -> None:
        """Make ranges of bytes somebody's."""
        call_kernel(
            TILE_OWN, [self._owners_at, begin.ctypes.data, num_bytes.ctypes.data], TileOwnInts(len(begin), owner),
        )

    def stranger(self, begin: Numbers, num_bytes: Numbers, owner: int) -> int:
        """Return the first range of which a byte is not somebody's, or -1."""
        call_kernel(
            TILE_CHECK, [self._fault.ctypes.data, self._owners_at, begin.ctypes.data, num_bytes.ctypes.data],
            TileOwnInts(len(begin), owner),
        )
        return int(self._fault[0])


def _untouched(num_bytes: int) -> mmap.mmap:
    """Return zeros for which the host has set nothing aside."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, max(num_bytes, 1), flags=flags)
