"""Where variables lie in tile memory: the same bytes on all tiles that hold one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from torchipu.device.memory.always import Always
from torchipu.device.memory.liveness import Lifetime, Liveness
from torchipu.device.memory.shares import ALIGNMENT_BYTES, Shares, TileBytes
from torchipu.ir.program import Variable


def addresses_of(liveness: Liveness, shares: Shares, always: Always) -> dict[str, tuple[int, int]]:
    """Place always-live variables above code and stacks, then temporaries by size, largest first, above them.

    What has to lie in interleaved memory comes from its first address on.

    Args:
        liveness: Of the program.
        shares: Of its variables.
        always: What tiles hold all the time.
    """
    addresses: dict[str, tuple[int, int]] = {}
    trace = liveness.trace
    for ipu in range(liveness.executable.num_ipus):
        mine, below = _one_a_place(_hulls(life for life in liveness.lifetimes if life.variable.ipu == ipu))
        top = always.program_by_tile(ipu)
        # A stash keeps its slots through the whole schedule.
        lasting = [life for life in mine if life.always or life.variable.depth > 1]
        passing = [life for life in mine if not life.always and life.variable.depth == 1]
        _place_always([life for life in lasting if life.variable not in trace.interleaved], shares, top, addresses)
        passing += [
            replace(life, begin=0, end=trace.time) for life in lasting if life.variable in trace.interleaved
        ]
        interleaved = {life.variable: always.target.code_region_bytes for life in passing
                       if life.variable in trace.interleaved}
        _place_temporaries(passing, shares, top, interleaved, addresses)
        addresses.update({variable.name: addresses[first.name] for variable, first in below.items()})
    return {variable.name: addresses[variable.name] for variable in liveness.executable.variables}


def _hulls(lifetimes: Iterable[Lifetime]) -> list[Lifetime]:
    """Return one lifetime a variable: code has its address, so that it keeps it where it comes and goes."""
    found: dict[Variable, Lifetime] = {}
    for life in lifetimes:
        before = found.setdefault(life.variable, life)
        found[life.variable] = replace(before, begin=min(before.begin, life.begin), end=max(before.end, life.end))
    return list(found.values())


def _one_a_place(lifetimes: list[Lifetime]) -> tuple[list[Lifetime], dict[Variable, Variable]]:
    """Return one lifetime for all that follow each other on the same bytes, and the first of them for each other."""
    found = {life.variable: life for life in lifetimes if life.over is None}
    below: dict[Variable, Variable] = {}
    for life in sorted((life for life in lifetimes if life.over is not None), key=lambda life: life.begin):
        assert life.over is not None
        first = below[life.variable] = below.get(life.over, life.over)
        found[first] = replace(found[first], end=max(found[first].end, life.end))
    return list(found.values()), below


def _extent(shares: Shares, variable: Variable) -> tuple[int, int, int]:
    """Return the first tile, the tile after the last, and the aligned bytes that a variable reserves on each."""
    first, end, largest = shares.extent(variable)
    return first, end, -(-largest * variable.depth // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _place_always(
    lifetimes: list[Lifetime], shares: Shares, height: TileBytes, addresses: dict[str, tuple[int, int]],
) -> None:
    """Stack variables on their tiles, raising each tile's ``height``."""
    for lifetime in lifetimes:
        first, end, needed = _extent(shares, lifetime.variable)
        begin = int(height[first:end].max())
        height[first:end] = begin + needed
        addresses[lifetime.variable.name] = (begin, begin + needed)


def _place_temporaries(
    lifetimes: list[Lifetime], shares: Shares, height: TileBytes, least: Mapping[Variable, int],
    addresses: dict[str, tuple[int, int]],
) -> None:
    """Put each variable, largest first, into the lowest gap among those that live with it on one of its tiles.

    Args:
        lifetimes: Of the variables.
        shares: Of the variables.
        height: By tile, up to where it is occupied all the time.
        least: The address from which on a variable has to lie, where that is not 0.
        addresses: Where variables are entered.
    """
    extents = [_extent(shares, lifetime.variable) for lifetime in lifetimes]
    count = len(lifetimes)
    begin_time, end_time = np.zeros((2, count), np.int64)
    first_tile, end_tile, low, high = np.zeros((4, count), np.int64)
    order = sorted(range(count), key=lambda index: -extents[index][2])
    for placed, index in enumerate(order):
        lifetime, (first, end, needed) = lifetimes[index], extents[index]
        born, died = lifetime.begin, lifetime.end
        earlier = slice(0, placed)
        clash = (
            (begin_time[earlier] <= died) & (end_time[earlier] >= born)
            & (first_tile[earlier] < end) & (end_tile[earlier] > first)
        )
        base = max(int(height[first:end].max()), least.get(lifetime.variable, 0))
        address = _lowest_gap(low[earlier][clash], high[earlier][clash], base, needed)
        begin_time[placed], end_time[placed] = born, died
        first_tile[placed], end_tile[placed] = first, end
        low[placed], high[placed] = address, address + needed
        addresses[lifetime.variable.name] = (address, address + needed)


def _lowest_gap(low: TileBytes, high: TileBytes, base: int, needed: int) -> int:
    """Return the lowest address from ``base`` on at which ``needed`` bytes are free between occupied ranges."""
    if not low.size:
        return base
    order = np.argsort(low, kind="stable")
    starts = low[order]
    tops = np.maximum(np.maximum.accumulate(high[order]), base)
    # The gap before range k begins where all lower ranges have ended.
    floors = np.concatenate(([base], tops))
    fits = np.flatnonzero(starts - floors[:-1] >= needed)
    return int(floors[fits[0]] if fits.size else floors[-1])
