"""Tiles, variables and liveness of a program as rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchipu.device.cost.by_tile import TileWork
from torchipu.device.memory.always import CATEGORIES, GAP, TEMPORARIES, Always
from torchipu.device.memory.by_tile import tile_maps
from torchipu.device.memory.io_tiles import io_tile_memory
from torchipu.device.memory.liveness import Lifetime, Liveness
from torchipu.device.memory.shares import Shares
from torchipu.ir.program import Executable
from torchipu.report.facts import rows
from torchipu.report.facts.patterns import Patterns
from torchipu.target import Target


@dataclass(frozen=True, slots=True)
class MemoryRows:
    """What tiles hold, as rows of the tables of the same names."""

    tiles: tuple[rows.Tile, ...]
    tile_categories: tuple[rows.TileCategory, ...]
    variables: tuple[rows.Variable, ...]
    shares: tuple[rows.Share, ...]
    liveness: tuple[rows.LiveStep, ...]
    exchanges: tuple[rows.Exchange, ...]


def memory_rows(
    executable: Executable, target: Target, io_tiles: int, operations: Mapping[int, int], work: TileWork,
    patterns: Patterns,
) -> MemoryRows:
    """Return what tiles hold when.

    Args:
        executable: With addresses.
        target: The machine, less the tiles that are set apart for transfers.
        io_tiles: How many these are on each IPU; their numbers follow those of the others.
        operations: Numbers of ops by their ``id``.
        work: Of the compute sets.
        patterns: Takes the vertices by tile.
    """
    liveness, shares = Liveness(executable), Shares(target.num_tiles)
    always = Always(liveness, shares, target)
    maps, steps = tile_maps(liveness, shares, always)
    tiles: list[rows.Tile] = []
    categories: list[rows.TileCategory] = []
    for found in maps:
        held = found.filled - found.bytes_by_category[GAP] - found.bytes_by_category[TEMPORARIES]
        columns = (found.filled, found.occupied, held, found.time)
        tiles += [
            rows.Tile(found.ipu, tile, *map(int, numbers)) for tile, numbers in enumerate(zip(*columns, strict=True))
        ]
        for name in CATEGORIES:
            used = np.flatnonzero(found.bytes_by_category[name])
            categories += [
                rows.TileCategory(found.ipu, tile, name, count)
                for tile, count in zip(used.tolist(), found.bytes_by_category[name][used].tolist(), strict=True)
            ]
    for io in io_tile_memory(executable, target, io_tiles):
        for tile in range(target.num_tiles, target.num_tiles + io_tiles):
            tiles.append(rows.Tile(io.ipu, tile, io.total_bytes, io.occupied_bytes, io.total_bytes, 0))
            categories += [
                rows.TileCategory(io.ipu, tile, name, count) for name, count in io.bytes_by_category.items() if count
            ]
    functions = _function_of_each_step(liveness)
    # Both are in the order of the supersteps, and in each of them in that of its groups.
    live = tuple(
        rows.LiveStep(
            step.time, step.ipu, functions[step.time], moment.label, operations.get(id(moment.group.op), -1),
            step.live_bytes, step.fullest_bytes, moment.group.temporary_bytes,
            patterns.number(work.vertices(moment.group.runs)), control,
        ) for step, moment, control in zip(steps, liveness.trace.moments, always.control_by_moment, strict=True)
    )
    return MemoryRows(
        tuple(tiles), tuple(categories), tuple(_variables(executable, liveness, operations)),
        tuple(_shares(executable, shares)), live, tuple(_exchanges(executable, liveness, always)),
    )


def _function_of_each_step(liveness: Liveness) -> Sequence[str]:
    """Return the name of the function at each superstep."""
    names = [""] * (liveness.trace.time + 1)
    for name, (begin, end) in liveness.trace.functions.items():
        names[begin : end + 1] = [name] * (end + 1 - begin)
    return names


def _variables(executable: Executable, liveness: Liveness, operations: Mapping[int, int]) -> Iterator[rows.Variable]:
    """Yield variables; what lies off chip comes and goes, and is held from its first superstep to its last."""
    lives: dict[str, list[Lifetime]] = {}
    for life in liveness.lifetimes:
        lives.setdefault(life.variable.name, []).append(life)
    makers: dict[str, int] = {}
    for moment in liveness.trace.moments:
        for field, variable in moment.group.fields.items():
            if field.startswith("out"):
                makers.setdefault(variable.name, operations.get(id(moment.group.op), -1))
    for number, one in enumerate(executable.variables):
        begin, end = executable.addresses.get(one.name, (0, 0))
        mine = lives[one.name]
        yield rows.Variable(
            number, one.name, one.ipu, one.dtype.name.lower(), ",".join(map(str, one.shape)), one.role.name.lower(),
            one.device_bytes * one.depth, one.depth, mine[0].always, one.off_chip,
            0 if mine[0].always else min(life.begin for life in mine),
            liveness.trace.time if mine[0].always else max(life.end for life in mine),
            begin, end, makers.get(one.name, -1),
        )


def _exchanges(executable: Executable, liveness: Liveness, always: Always) -> Iterator[rows.Exchange]:
    """Yield exchanges with their code."""
    numbers = {variable.name: number for number, variable in enumerate(executable.variables)}
    for number, (key, sent) in enumerate(liveness.trace.exchanges.items()):
        variables = json.dumps(sorted({numbers[one.name] for one in sent}))
        yield rows.Exchange(
            number, key.ipu, variables, key.moved_bytes, key.busiest_bytes, key.fragments, always.code_by_exchange[key],
        )


def _shares(executable: Executable, shares: Shares) -> Iterator[rows.Share]:
    """Yield the bytes of all copies of each variable on its tiles, tiles with as many together."""
    for number, variable in enumerate(executable.variables):
        share = shares.of(variable) * variable.depth
        borders = [0, *(np.flatnonzero(np.diff(share)) + 1).tolist(), share.size]
        for first, end in pairwise(borders):
            if share[first]:
                yield rows.Share(number, first, end, int(share[first]))
