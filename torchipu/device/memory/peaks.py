"""The fullest tile of each IPU: how full it is, when, and of what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchipu.device.memory.always import CATEGORIES, GAP, TEMPORARIES, Always, total_of
from torchipu.device.memory.liveness import Liveness, Moment
from torchipu.device.memory.shares import Shares, TileBytes
from torchipu.ir.program import Variable

LARGEST = 5
"""Variables that are named of a fullest tile."""


@dataclass(frozen=True, slots=True)
class TileMemory:
    """Memory of the fullest tile of one IPU.

    Attributes:
        ipu: The IPU.
        tile: Its fullest tile.
        total_bytes: How far that tile is filled at its peak, with the gap below interleaved memory.
        bytes_by_category: The same by what it is for, in the order of ``CATEGORIES``.
        occupied_bytes: The most bytes that are in use on a tile of the IPU at any time, without gaps.
        at: The op during which the peak occurs; empty when nothing temporary is live.
        largest: The largest variables on that tile at that moment: ``(name, bytes)``.
    """

    ipu: int
    tile: int
    total_bytes: int
    bytes_by_category: dict[str, int]
    occupied_bytes: int
    at: str
    largest: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class _Held:
    """Bytes by tile of one IPU that are held now, outside interleaved memory and in it."""

    ordinary: TileBytes
    interleaved: TileBytes

    def with_temporaries(self, ordinary: TileBytes | int, interleaved: TileBytes | int) -> _Held:
        return _Held(self.ordinary + ordinary, self.interleaved + interleaved)

    def filled(self, begin: int) -> TileBytes:
        """Return up to where tiles are filled whose interleaved memory begins at an address.

        Everything else lies below, as far as there is room. What there is too much of lies behind, so that a gap is
        left only where there is less.
        """
        below = np.where(self.interleaved > 0, np.maximum(self.ordinary, begin), self.ordinary)
        filled: TileBytes = below + self.interleaved
        return filled

    def occupied(self) -> int:
        """Return the bytes in use on the tile that has the most."""
        return int((self.ordinary + self.interleaved).max())


@dataclass(frozen=True, slots=True)
class _Peak:
    """The fullest tile of an IPU, and what runs then."""

    total: int
    tile: int
    time: int = 0
    moment: Moment | None = None
    interleaved: int = 0
    ordinary: int = 0


def peaks(liveness: Liveness, shares: Shares, always: Always) -> tuple[TileMemory, ...]:
    """Return the fullest tile of each IPU.

    Args:
        liveness: Of the program.
        shares: Of its variables.
        always: What tiles hold all the time.
    """
    begins: dict[int, list[Variable]] = {}
    ends: dict[int, list[Variable]] = {}
    for lifetime in liveness.lifetimes:
        if not lifetime.always:
            begins.setdefault(lifetime.begin, []).append(lifetime.variable)
            ends.setdefault(lifetime.end, []).append(lifetime.variable)
    moments: dict[int, list[Moment]] = {}
    for moment in liveness.trace.moments:
        moments.setdefault(moment.time, []).append(moment)
    region = always.target.code_region_bytes
    held = [
        _Held(total_of(ordinary), total_of(interleaved))
        for ordinary, interleaved in zip(always.ordinary, always.interleaved, strict=True)
    ]
    best = [_peak(one, region, 0, None) for one in held]
    occupied = [one.occupied() for one in held]
    is_interleaved = liveness.trace.interleaved
    for time in range(1, liveness.trace.time + 1):
        for variable in begins.get(time, ()):
            _add(held, variable, shares, 1, variable in is_interleaved)
        for moment in moments.get(time, ()):
            needed = moment.group.temporary_bytes
            now = held[moment.ipu]
            if needed:
                on_tiles, partials = shares.on_tiles_of(moment.group), moment.group.partial_bytes
                now = now.with_temporaries(on_tiles * (needed - partials), on_tiles * partials)
            found = _peak(now, region, time, moment)
            if found.total > best[moment.ipu].total:
                best[moment.ipu] = found
            occupied[moment.ipu] = max(occupied[moment.ipu], now.occupied())
        for variable in ends.get(time, ()):
            _add(held, variable, shares, -1, variable in is_interleaved)
    return tuple(
        _described(ipu, found, most, liveness, shares, always)
        for ipu, (found, most) in enumerate(zip(best, occupied, strict=True))
    )


def _add(held: list[_Held], variable: Variable, shares: Shares, sign: int, is_interleaved: bool) -> None:
    here = held[variable.ipu]
    if is_interleaved:
        here.interleaved += sign * shares.of(variable)
    else:
        here.ordinary += sign * shares.of(variable)


def _peak(held: _Held, region: int, time: int, moment: Moment | None) -> _Peak:
    filled = held.filled(region)
    tile = int(filled.argmax())
    return _Peak(int(filled[tile]), tile, time, moment, int(held.interleaved[tile]), int(held.ordinary[tile]))


def _described(
    ipu: int, peak: _Peak, occupied: int, liveness: Liveness, shares: Shares, always: Always,
) -> TileMemory:
    """Describe the fullest tile at its peak."""
    tile, group = peak.tile, None if peak.moment is None else peak.moment.group
    categories = {
        name: int(always.ordinary[ipu][name][tile] + always.interleaved[ipu][name][tile]) for name in CATEGORIES
    }
    categories[TEMPORARIES] = peak.ordinary + peak.interleaved - sum(categories.values())
    categories[GAP] = peak.total - peak.ordinary - peak.interleaved
    sizes = [("(vertex temporaries)", group.temporary_bytes)] if group is not None and group.temporary_bytes else []
    for lifetime in liveness.lifetimes:
        variable = lifetime.variable
        if variable.ipu != ipu:
            continue
        live = lifetime.always or lifetime.begin <= peak.time <= lifetime.end
        copies = variable.depth if live else variable.depth - 1
        if copies:
            sizes.append((variable.name, copies * int(shares.of(variable)[tile])))
    largest = tuple(sorted((pair for pair in sizes if pair[1]), key=lambda pair: -pair[1])[:LARGEST])
    label = "" if peak.moment is None else peak.moment.label
    return TileMemory(ipu, tile, peak.total, categories, occupied, label, largest)
