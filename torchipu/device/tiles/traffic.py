"""What the vertices of a program move between tiles, counted as they do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torchipu.device.tiles.fields import Move
from torchipu.device.tiles.prepared import PreparedSet
from torchipu.ir.region import Numbers, distinct


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Bytes by tile of one run of a compute set.

    Attributes:
        received: ``[tiles]``, from other tiles, before the vertices run and behind.
        sent: ``[tiles]``, to other tiles; what several receive is sent once.
        copied: ``[tiles]``, by vertices that lay out on their tile what they have received or made.
        vertices: ``[tiles]``, how many ran.
    """

    received: Numbers
    sent: Numbers
    copied: Numbers
    vertices: Numbers


def traffic_of(prepared: PreparedSet, num_tiles: int, tile_bytes: int) -> Traffic:
    """Return what one run of a compute set moves on one IPU.

    Args:
        prepared: The run.
        num_tiles: Of the IPU.
        tile_bytes: Memory of a tile.
    """
    received, sent, copied = (np.zeros(num_tiles, np.int64) for _ in range(3))
    for move in _moves(prepared):
        size = move.target.element_bytes
        arrives = np.bincount(move.to_places // tile_bytes, minlength=num_tiles) * size
        if move.is_exchange:
            received += arrives
            sent += np.bincount(distinct(move.from_places) // tile_bytes, minlength=num_tiles) * size
        else:
            copied += arrives
    vertices = np.bincount(prepared.tiles, minlength=num_tiles)
    return Traffic(received, sent, copied, vertices.astype(np.int64))


def _moves(prepared: PreparedSet) -> Iterable[Move]:
    for field in (*prepared.reads, *prepared.writes):
        yield from field.moves
