"""Gives variables their addresses, and refuses programs that the fullest tile cannot hold.

Kept by later passes: variables that share a tile and are live together do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from torchipu.errors import OutOfTileMemoryError
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import (
    AllReduce,
    Call,
    Copy,
    Executable,
    Execute,
    Gather,
    HostCopy,
    If,
    OnIpus,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Variable,
    VertexGroup,
    leaves_of,
    parts_of,
)
from torchipu.ir.types import Role
from torchipu.target import Target

TileBytes = np.ndarray  # int64 [num_tiles], bytes
ALIGNMENT_BYTES = 8  # 64-bit loads
REMEDIES = (
    "put the model on more IPUs (torchipu.Block), save memory with recomputation or off-chip optimiser state, "
    "or make the micro-batch or the available memory proportion smaller"
)
NOTHING = Sequence(())
MAX_EXCHANGE_CODE_BYTES = 7_000  # the largest seen for one scattered exchange; ipu_hardware.md 3.6
CATEGORIES = (
    "weights", "optimiser state", "stashes", "streams and links", "code", "exchange code", "control", "stacks",
    "temporaries",
)

EXECUTED = ("code", "exchange code")
"""Categories that lie in the region that a tile executes from."""


@dataclass(frozen=True, slots=True)
class TileMemory:
    """Memory of the fullest tile of one IPU.

    Attributes:
        ipu: The IPU.
        tile: Its fullest tile.
        total_bytes: Bytes that tile needs at its peak.
        bytes_by_category: The same by what it is for, in the order of ``CATEGORIES``.
        mean_bytes: Bytes needed at the same moment, averaged over all tiles.
        at: The op during which the peak occurs; empty when nothing temporary is live.
        largest: The largest variables on that tile at that moment: ``(name, bytes)``.
    """

    ipu: int
    tile: int
    total_bytes: int
    bytes_by_category: dict[str, int]
    mean_bytes: int
    at: str
    largest: tuple[tuple[str, int], ...]


def assign_memory(executable: Executable, target: Target, *, allow_overflow: bool) -> Executable:
    """Place every variable in tile memory.

    Args:
        executable: From the lower pass.
        target: The machine.
        allow_overflow: Report programs that do not fit instead of raising.

    Returns:
        The executable with addresses: the same bytes on all tiles that hold the variable.

    Raises:
        OutOfTileMemoryError: A tile needs more than it has, or more code than the region holds that can be executed.
    """
    liveness = Liveness(executable, target)
    if not allow_overflow:
        for ipu in range(executable.num_ipus):
            _check_code(liveness, ipu, target)
        fullest = max(liveness.peaks(), key=lambda memory: memory.total_bytes)
        if fullest.total_bytes > target.tile_memory_bytes:
            raise _out_of_memory(fullest, target)
    return replace(executable, addresses=_addresses(liveness))


def tile_memory(executable: Executable, target: Target) -> tuple[TileMemory, ...]:
    """Return the memory of the fullest tile of each IPU."""
    return Liveness(executable, target).peaks()


def _check_code(liveness: Liveness, ipu: int, target: Target) -> None:
    """Refuse code that does not fit into the region that is executed from (``ipu_hardware.md`` 3.6)."""
    code = liveness.executed_by_tile(ipu)
    tile = int(code.argmax())
    if code[tile] <= target.code_region_bytes:
        return
    shares = {name: int(liveness.always(ipu)[name][tile]) for name in EXECUTED}
    raise OutOfTileMemoryError(
        f"tile {tile} of ipu {ipu} needs {code[tile]} B of code, but a tile of {target.title} executes from a region "
        f"of {target.code_region_bytes} B", ipu=ipu, tile=tile, needed_bytes=int(code[tile]),
        available_bytes=target.code_region_bytes,
        detail="\n".join(f"{name:<18} {count:>9} B" for name, count in shares.items() if count),
        remedy="put the model on more IPUs (torchipu.Block): each then has fewer ops, and less code",
    )


def _out_of_memory(memory: TileMemory, target: Target) -> OutOfTileMemoryError:
    lines = [f"{name:<18} {count:>9} B" for name, count in memory.bytes_by_category.items() if count]
    lines += ["largest variables on this tile:"]
    lines += [f"%{name:<17} {count:>9} B" for name, count in memory.largest]
    where = f" during {memory.at}" if memory.at else ""
    return OutOfTileMemoryError(
        f"tile {memory.tile} of ipu {memory.ipu} needs {memory.total_bytes} B{where}, "
        f"but a tile of {target.title} has {target.tile_memory_bytes} B",
        ipu=memory.ipu, tile=memory.tile, needed_bytes=memory.total_bytes,
        available_bytes=target.tile_memory_bytes, detail="\n".join(lines), remedy=REMEDIES,
    )


# --------------------------------------------------------------------------- liveness
@dataclass(slots=True)
class _Lifetime:
    """First and last superstep at which a variable holds a value; ``always`` from load to the end."""

    variable: Variable
    begin: int
    end: int
    always: bool


@dataclass(frozen=True, slots=True)
class _Moment:
    """A superstep that needs temporary memory."""

    time: int
    ipu: int
    group: VertexGroup
    label: str


@dataclass(slots=True)
class _Trace:
    """What happens in one run of each function, in the order in which the program first reaches them."""

    first: dict[Variable, int] = field(default_factory=dict)
    last: dict[Variable, int] = field(default_factory=dict)
    fed: set[Variable] = field(default_factory=set)
    moments: list[_Moment] = field(default_factory=list)
    exchanges: dict[tuple[int, int, int, int], None] = field(default_factory=dict)
    loops: list[tuple[int, int]] = field(default_factory=list)
    functions: dict[str, tuple[int, int]] = field(default_factory=dict)
    off_chip: dict[Variable, list[int]] = field(default_factory=dict)
    time: int = 0

    def touch(self, variables: Iterable[Variable]) -> None:
        """Note that variables are in use now."""
        for variable in variables:
            self.first.setdefault(variable, self.time)
            self.last[variable] = self.time
            if variable.off_chip:
                self.off_chip.setdefault(variable, []).append(self.time)


class Liveness:
    """Which variables hold a value when, over the order in which functions first run.

    Args:
        executable: The program.
        target: The machine.
    """

    def __init__(self, executable: Executable, target: Target) -> None:
        self.executable = executable
        self.target = target
        self.trace = _Trace()
        for program in executable.programs.values():
            for function in _first_calls(program, executable):
                begin = self.trace.time + 1
                self._follow(executable.functions[function])
                self.trace.functions[function] = (begin, self.trace.time)
            self._hold_until_sent(program)
        self._elements: dict[int, TileBytes] = {}
        self._bytes: dict[tuple[int, int], TileBytes] = {}
        self._extents: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.lifetimes = [life for variable in executable.variables for life in self._lifetimes(variable)]

    def _follow(self, program: Program) -> None:
        """Walk a function's body, one moment for each step."""
        trace = self.trace
        match program:
            case Sequence(body=body):
                for part in body:
                    self._follow(part)
            case Repeat() | RepeatWhile():
                begin = trace.time + 1
                for part in parts_of(program):
                    self._follow(part)
                if isinstance(program, RepeatWhile):
                    trace.touch((program.condition,))
                trace.loops.append((begin, trace.time))
            case If(condition=condition):
                trace.touch((condition,))
                for part in parts_of(program):
                    self._follow(part)
            case Execute(compute_set=compute_set):
                trace.time += 1
                for group in compute_set.groups:
                    trace.touch(group.fields.values())
                    trace.moments.append(_Moment(trace.time, compute_set.ipu, group, compute_set.name))
            case Copy(src=src, dst=dst, total_bytes=total, max_tile_bytes=largest, fragments=fragments):
                trace.time += 1
                trace.touch((src, dst))
                # Exchanges of equal size are taken for one outlined body.
                trace.exchanges[dst.ipu, total, largest, fragments] = None
                if src.ipu != dst.ipu:
                    trace.fed.add(dst)
            case Gather(variables=variables, total_bytes=total, max_tile_bytes=largest, fragments=fragments):
                trace.time += 1
                trace.touch(variables)
                trace.exchanges[variables[0].ipu, total, largest, fragments] = None
            case HostCopy(variable=variable, to_device=to_device):
                trace.time += 1
                trace.touch((variable,))
                if to_device and not variable.off_chip:
                    trace.fed.add(variable)
            case AllReduce(variables=variables):
                trace.time += 1
                trace.touch(variables)

    def _hold_until_sent(self, program: Program) -> None:
        """Hold what a function sends through those that its IPU runs after it in a cycle, which ends with the sends."""
        trace = self.trace
        for part in parts_of(program):
            self._hold_until_sent(part)
        for cell in program.bodies if isinstance(program, OnIpus) else ():
            calls = [part.function for part in leaves_of(cell) if isinstance(part, Call)]
            for place, function in enumerate(calls):
                end = max((trace.functions[later][1] for later in calls[place + 1 :]), default=0)
                for copy in leaves_of(self.executable.functions.get(f"{function}.send", NOTHING)):
                    if isinstance(copy, Copy) and copy.src in trace.last:
                        trace.last[copy.src] = max(trace.last[copy.src], end)

    def _lifetimes(self, variable: Variable) -> list[_Lifetime]:
        """Return when a variable is held: what is off chip, once for each function that uses it."""
        if not variable.off_chip or variable not in self.trace.first:
            return [self._lifetime(variable)]
        times = self.trace.off_chip[variable]
        spans = [[time for time in times if begin <= time <= end] for begin, end in self.trace.functions.values()]
        return [_Lifetime(variable, min(span), max(span), always=False) for span in spans if span]

    def _lifetime(self, variable: Variable) -> _Lifetime:
        trace = self.trace
        lasting = variable.role.is_state or variable.role in (Role.CONSTANT, Role.HYPERPARAMETER)
        unused = variable not in trace.first
        always = lasting or variable in trace.fed or unused
        begin, end = trace.first.get(variable, 0), trace.last.get(variable, 0)
        for first, last in trace.loops:  # inner loops come first
            if begin <= last and end >= first and (begin < first or end > last):
                begin, end = min(begin, first), max(end, last)  # shared with what lies around: held through all trips
        return _Lifetime(variable, begin, end, always)

    def bytes_by_tile(self, mapping: TileMapping, element_bytes: int) -> TileBytes:
        """Return the bytes that a mapping puts on each tile."""
        key = (id(mapping), element_bytes)
        if key not in self._bytes:
            self._bytes[key] = self._elements_by_tile(mapping) * element_bytes
        return self._bytes[key]

    def _elements_by_tile(self, mapping: TileMapping) -> TileBytes:
        key = id(mapping)
        if key not in self._elements:
            count = np.zeros(self.target.num_tiles, np.int64)
            if mapping.runs:
                runs = np.array(mapping.runs, np.int64)
                np.add.at(count, runs[:, 0], runs[:, 2] - runs[:, 1])
            self._elements[key] = count
        return self._elements[key]

    def share(self, variable: Variable) -> TileBytes:
        """Return the bytes of one copy of a variable on each tile."""
        return self.bytes_by_tile(variable.mapping, variable.dtype.device_bytes)

    def extent(self, variable: Variable) -> tuple[int, int, int]:
        """Return the first tile of a variable, the tile after its last, and the most bytes that one holds."""
        key = (id(variable.mapping), variable.dtype.device_bytes)
        if key not in self._extents:
            share = self.share(variable)
            used = np.flatnonzero(share)
            self._extents[key] = (int(used[0]), int(used[-1]) + 1, int(share.max())) if used.size else (0, 1, 0)
        return self._extents[key]

    # ------------------------------------------------------------------ peaks
    @cached_property
    def _always(self) -> list[dict[str, TileBytes]]:
        """For each IPU, the bytes by tile that are live all the time, by category."""
        tiles = self.target.num_tiles
        always = [{name: np.zeros(tiles, np.int64) for name in CATEGORIES} for _ in range(self.executable.num_ipus)]
        for lifetime in self.lifetimes:
            variable = lifetime.variable
            copies = variable.depth if lifetime.always else variable.depth - 1
            if copies:
                always[variable.ipu][_category(lifetime)] += copies * self.share(variable)
        self._add_code(always)
        return always

    def _add_code(self, always: list[dict[str, TileBytes]]) -> None:
        """Add stacks, code once for each codelet on an IPU, and control once for each distinct compute set."""
        seen: set[tuple[object, ...]] = set()
        for moment in self.trace.moments:
            group, here = moment.group, always[moment.ipu]
            if (moment.ipu, group.codelet) not in seen:
                seen.add((moment.ipu, group.codelet))
                here["code"] += self.executable.code_bytes.get(group.codelet, 0)
            key = (moment.ipu, group.codelet, id(group.runs), id(group.work))
            if key not in seen:
                seen.add(key)
                on_tiles = self.bytes_by_tile(group.runs, 1) > 0
                here["control"] += on_tiles * self.target.control_bytes_per_compute_set
        for ipu, _, largest, fragments in self.trace.exchanges:
            always[ipu]["exchange code"] += exchange_code_bytes(largest, fragments)
        for here in always:
            here["stacks"] += self.target.stack_bytes

    def always(self, ipu: int) -> dict[str, TileBytes]:
        """Return the bytes by tile that are live all the time, by category."""
        return self._always[ipu]

    def executed_by_tile(self, ipu: int) -> TileBytes:
        """Return the bytes on each tile of what has to lie in the region that is executed from."""
        here = self._always[ipu]
        total: TileBytes = np.sum([here[name] for name in EXECUTED], axis=0)
        return total

    def code_by_tile(self, ipu: int) -> TileBytes:
        """Return the bytes of code, control and stacks on each tile, rounded up to the alignment."""
        always = self._always[ipu]
        total = always["code"] + always["exchange code"] + always["control"] + always["stacks"]
        return -(-total // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def peaks(self) -> tuple[TileMemory, ...]:
        """Return the fullest tile of each IPU."""
        begins: dict[int, list[Variable]] = {}
        ends: dict[int, list[Variable]] = {}
        for lifetime in self.lifetimes:
            if not lifetime.always:
                begins.setdefault(lifetime.begin, []).append(lifetime.variable)
                ends.setdefault(lifetime.end, []).append(lifetime.variable)
        held: list[TileBytes] = [np.sum(list(shares.values()), axis=0) for shares in self._always]
        best = [(int(total.max()), int(total.argmax()), 0, "", float(total.mean()), 0) for total in held]
        moments: dict[int, list[_Moment]] = {}
        for moment in self.trace.moments:
            moments.setdefault(moment.time, []).append(moment)
        for time in range(1, self.trace.time + 1):
            for variable in begins.get(time, ()):
                held[variable.ipu] += self.share(variable)
            for moment in moments.get(time, ()):
                total, needs = held[moment.ipu], moment.group.temporary_bytes
                if needs:
                    total = total + (self.bytes_by_tile(moment.group.runs, 1) > 0) * needs
                peak = int(total.max())
                if peak > best[moment.ipu][0]:
                    tile = int(total.argmax())
                    best[moment.ipu] = (peak, tile, time, moment.label, float(total.mean()), needs)
            for variable in ends.get(time, ()):
                held[variable.ipu] -= self.share(variable)
        return tuple(self._memory(ipu, *found) for ipu, found in enumerate(best))

    def _memory(self, ipu: int, total: int, tile: int, time: int, label: str, mean: float, needs: int) -> TileMemory:
        """Describe the fullest tile at its peak."""
        categories = {name: int(share[tile]) for name, share in self._always[ipu].items()}
        categories["temporaries"] = total - sum(categories.values())
        sizes = [("(vertex temporaries)", needs)] if needs else []
        for lifetime in self.lifetimes:
            variable = lifetime.variable
            if variable.ipu != ipu:
                continue
            live = lifetime.always or lifetime.begin <= time <= lifetime.end
            copies = variable.depth if live else variable.depth - 1
            if copies:
                sizes.append((variable.name, copies * int(self.share(variable)[tile])))
        largest = tuple(sorted((pair for pair in sizes if pair[1]), key=lambda pair: -pair[1])[:5])
        return TileMemory(ipu, tile, total, categories, round(mean), label, largest)


def exchange_code_bytes(tile_bytes: int, fragments: int) -> int:
    """Return the code of one exchange on a tile: a word for each burst of 64 words, 12 bytes for each fragment.

    Source: profiles of BERT and ViT, ``ipu_hardware.md`` 3.6.
    """
    return min(MAX_EXCHANGE_CODE_BYTES, 4 * -(-tile_bytes // 256) + 12 * fragments)


def _category(lifetime: _Lifetime) -> str:
    """Return the category of a variable, or of the copies of it that are always live."""
    role = lifetime.variable.role
    if role is Role.OPTIMISER_STATE:
        return "optimiser state"
    if role.is_state or role in (Role.CONSTANT, Role.HYPERPARAMETER):
        return "weights"
    return "streams and links" if lifetime.always else "stashes"


def _first_calls(program: Program, executable: Executable) -> Iterator[str]:
    """Yield the functions of a program in the order in which it first calls them."""
    seen: dict[str, None] = {}

    def walk(part: Program) -> Iterator[str]:
        match part:
            case Call(function=function):
                if function not in seen:
                    seen[function] = None
                    yield function
            case Sequence(body=parts) | OnIpus(bodies=parts):
                for inner in parts:
                    yield from walk(inner)
            case Repeat(body=inner):
                yield from walk(inner)

    yield from walk(program)
    # Functions that no cycle calls are followed too: their variables need a place all the same.
    yield from (name for name in executable.functions if name not in seen)


# --------------------------------------------------------------------------- addresses
def _addresses(liveness: Liveness) -> dict[str, tuple[int, int]]:
    """Place always-live variables above code and stacks, then temporaries by size, largest first, above them."""
    addresses: dict[str, tuple[int, int]] = {}
    for ipu in range(liveness.executable.num_ipus):
        mine = _hulls(life for life in liveness.lifetimes if life.variable.ipu == ipu)
        top = liveness.code_by_tile(ipu)
        # A stash keeps its slots through the whole schedule.
        _place_always([life for life in mine if life.always or life.variable.depth > 1], liveness, top, addresses)
        passing = [life for life in mine if not life.always and life.variable.depth == 1]
        _place_temporaries(passing, liveness, top, addresses)
    return {variable.name: addresses[variable.name] for variable in liveness.executable.variables}


def _hulls(lifetimes: Iterable[_Lifetime]) -> list[_Lifetime]:
    """Return one lifetime a variable: code has its address, so that it keeps it where it comes and goes."""
    found: dict[Variable, _Lifetime] = {}
    for life in lifetimes:
        before = found.setdefault(life.variable, life)
        found[life.variable] = replace(before, begin=min(before.begin, life.begin), end=max(before.end, life.end))
    return list(found.values())


def _extent(liveness: Liveness, variable: Variable) -> tuple[int, int, int]:
    """Return the first tile, the tile after the last, and the aligned bytes that a variable reserves on each."""
    first, end, largest = liveness.extent(variable)
    return first, end, -(-largest * variable.depth // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _place_always(
    lifetimes: list[_Lifetime], liveness: Liveness, height: TileBytes, addresses: dict[str, tuple[int, int]],
) -> None:
    """Stack variables on their tiles, raising each tile's ``height``."""
    for lifetime in lifetimes:
        first, end, needed = _extent(liveness, lifetime.variable)
        begin = int(height[first:end].max())
        height[first:end] = begin + needed
        addresses[lifetime.variable.name] = (begin, begin + needed)


def _place_temporaries(
    lifetimes: list[_Lifetime], liveness: Liveness, height: TileBytes, addresses: dict[str, tuple[int, int]],
) -> None:
    """Put each variable, largest first, into the lowest gap among those that live with it on one of its tiles."""
    extents = [_extent(liveness, lifetime.variable) for lifetime in lifetimes]
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
        address = _lowest_gap(low[earlier][clash], high[earlier][clash], int(height[first:end].max()), needed)
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
