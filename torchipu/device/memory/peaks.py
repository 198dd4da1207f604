"""The fullest tile of each IPU: how full it is, when, and of what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torchipu.device.memory.always import CATEGORIES, GAP, LASTING, TEMPORARIES, Always, total_of
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
        lasting_bytes: Of weights and of the program, what each tile of the IPU holds at least, all the time.
    """

    ipu: int
    tile: int
    total_bytes: int
    bytes_by_category: dict[str, int]
    occupied_bytes: int
    at: str
    largest: tuple[tuple[str, int], ...]
    lasting_bytes: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What the tiles of an IPU hold while a superstep runs on it.

    Attributes:
        ipu: The IPU.
        time: The superstep; 0 before the first.
        moment: What runs; None before the first superstep.
        ordinary: ``[num_tiles]`` bytes outside interleaved memory.
        interleaved: ``[num_tiles]`` bytes in it.
        region: Address at which interleaved memory begins.
    """

    ipu: int
    time: int
    moment: Moment | None
    ordinary: TileBytes
    interleaved: TileBytes
    region: int

    @property
    def filled(self) -> TileBytes:
        """``[num_tiles]`` bytes up to which tiles are filled.

        Everything else lies below interleaved memory, as far as there is room. What there is too much of lies behind,
        so that a gap is left only where there is less.
        """
        below = np.where(self.interleaved > 0, np.maximum(self.ordinary, self.region), self.ordinary)
        filled: TileBytes = below + self.interleaved
        return filled

    @property
    def most_filled(self) -> int:
        """Bytes that no tile is filled beyond: quickly found."""
        there = int(self.interleaved.max())
        here = int(self.ordinary.max())
        return max(here, self.region) + there if there else here

    @property
    def occupied(self) -> TileBytes:
        """``[num_tiles]`` bytes in use."""
        return self.ordinary + self.interleaved


@dataclass(frozen=True, slots=True)
class _Peak:
    """The fullest tile of an IPU, and what runs then."""

    total: int
    tile: int
    time: int
    moment: Moment | None
    interleaved: int
    ordinary: int


def peaks(liveness: Liveness, shares: Shares, always: Always) -> tuple[TileMemory, ...]:
    """Return the fullest tile of each IPU.

    Args:
        liveness: Of the program.
        shares: Of its variables.
        always: What tiles hold all the time.
    """
    best: dict[int, _Peak] = {}
    occupied = defaultdict[int, int](int)
    for now in occupancies(liveness, shares, always):
        if now.ipu in best and now.most_filled <= best[now.ipu].total and now.most_filled <= occupied[now.ipu]:
            continue
        filled = now.filled
        tile = int(filled.argmax())
        if now.ipu not in best or int(filled[tile]) > best[now.ipu].total:
            best[now.ipu] = _Peak(
                int(filled[tile]), tile, now.time, now.moment, int(now.interleaved[tile]), int(now.ordinary[tile]),
            )
        occupied[now.ipu] = max(occupied[now.ipu], int(now.occupied.max()))
    return tuple(_described(ipu, best[ipu], occupied[ipu], liveness, shares, always) for ipu in sorted(best))


def occupancies(liveness: Liveness, shares: Shares, always: Always) -> Iterator[Occupancy]:
    """Yield what the tiles of each IPU hold before the first superstep, then at each superstep of vertices.

    The arrays are valid until the next one is asked for.

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
    ordinary = [total_of(held) for held in always.ordinary]
    interleaved = [total_of(held) for held in always.interleaved]
    for ipu, (here, there) in enumerate(zip(ordinary, interleaved, strict=True)):
        yield Occupancy(ipu, 0, None, here, there, region)

    def add(variable: Variable, sign: int) -> None:
        held = interleaved if variable in liveness.trace.interleaved else ordinary
        held[variable.ipu] += sign * shares.of(variable)

    for time in range(1, liveness.trace.time + 1):
        for variable in begins.get(time, ()):
            add(variable, 1)
        for moment in moments.get(time, ()):
            here, there, needed = ordinary[moment.ipu], interleaved[moment.ipu], moment.group.temporary_bytes
            if needed:
                on_tiles, partials = shares.on_tiles_of(moment.group), moment.group.partial_bytes
                here, there = here + on_tiles * (needed - partials), there + on_tiles * partials
            yield Occupancy(moment.ipu, time, moment, here, there, region)
        for variable in ends.get(time, ()):
            add(variable, -1)


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
    sizes = [] if group is None else [("(vertex temporaries)", group.temporary_bytes)]
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
    lasting = total_of(always.ordinary[ipu], LASTING) + total_of(always.interleaved[ipu], LASTING)
    return TileMemory(ipu, tile, peak.total, categories, occupied, label, largest, int(lasting.min()))
