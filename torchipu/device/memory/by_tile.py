"""How full every tile is at its own peak, and how full tiles are at each superstep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchipu.device.memory.always import CATEGORIES, GAP, TEMPORARIES, Always, total_of
from torchipu.device.memory.liveness import Liveness
from torchipu.device.memory.peaks import occupancies
from torchipu.device.memory.shares import Shares, TileBytes


@dataclass(frozen=True, slots=True)
class TileMap:
    """The memory of all tiles of an IPU, each at its own peak.

    Attributes:
        ipu: Which.
        filled: ``[num_tiles]`` bytes up to which a tile is filled, with the gap below interleaved memory.
        time: ``[num_tiles]`` superstep of the peak.
        bytes_by_category: ``[num_tiles]`` bytes of each of ``CATEGORIES``; together they are ``filled``.
    """

    ipu: int
    filled: TileBytes
    time: TileBytes
    bytes_by_category: dict[str, TileBytes]

    @property
    def occupied(self) -> TileBytes:
        """``[num_tiles]`` bytes in use then, without the gap."""
        return self.filled - self.bytes_by_category[GAP]


@dataclass(frozen=True, slots=True)
class LiveStep:
    """A superstep of an IPU.

    Attributes:
        time: Which superstep.
        ipu: Which IPU.
        live_bytes: Bytes on all tiles of what is not held all the time.
        fullest_bytes: How far the fullest tile is filled.
    """

    time: int
    ipu: int
    live_bytes: int
    fullest_bytes: int


def tile_maps(liveness: Liveness, shares: Shares, always: Always) -> tuple[tuple[TileMap, ...], tuple[LiveStep, ...]]:
    """Return the memory of all tiles of each IPU, and the supersteps in which it changes, in order.

    Args:
        liveness: Of the program.
        shares: Of its variables.
        always: What tiles hold all the time.
    """
    lasting = [
        total_of(here) + total_of(there)
        for here, there in zip(always.ordinary, always.interleaved, strict=True)
    ]
    peaks: list[_Peaks | None] = [None] * len(lasting)
    steps = []
    for now in occupancies(liveness, shares, always):
        filled, occupied, before = now.filled, now.occupied, peaks[now.ipu]
        if before is None:
            peaks[now.ipu] = _Peaks(filled, occupied, np.zeros_like(filled))
            continue
        before.take(now.time, filled, occupied)
        live = int((occupied - lasting[now.ipu]).sum())
        steps.append(LiveStep(now.time, now.ipu, live, int(filled.max())))
    maps = tuple(
        _map(ipu, found, always) for ipu, found in enumerate(peaks) if found is not None
    )
    return maps, tuple(steps)


@dataclass(slots=True)
class _Peaks:
    """What tiles held when they were fullest so far."""

    filled: TileBytes
    occupied: TileBytes
    time: TileBytes

    def take(self, time: int, filled: TileBytes, occupied: TileBytes) -> None:
        fuller = filled > self.filled
        self.filled[fuller] = filled[fuller]
        self.occupied[fuller] = occupied[fuller]
        self.time[fuller] = time


def _map(ipu: int, peaks: _Peaks, always: Always) -> TileMap:
    categories = {name: always.ordinary[ipu][name] + always.interleaved[ipu][name] for name in CATEGORIES}
    lasting = np.sum([categories[name] for name in CATEGORIES if name not in (TEMPORARIES, GAP)], axis=0)
    categories[TEMPORARIES] = peaks.occupied - lasting
    categories[GAP] = peaks.filled - peaks.occupied
    return TileMap(ipu, peaks.filled, peaks.time, categories)
