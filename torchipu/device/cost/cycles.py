"""Cycles of straight-line programs: one function of the device program, superstep by superstep.

A superstep takes the sync, the exchange as its busiest tile has it, and the compute set as its slowest vertex has it;
nothing overlaps but the transfers that the user has marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchipu.device.cost.exchange import (
    collective_cycles,
    exchange_cycles,
    host_cycles,
    link_cycles,
    streaming_cycles,
)
from torchipu.device.cost.host_buffers import streamed_bytes
from torchipu.device.cost.sync import sync_cycles
from torchipu.ir.graph import Op
from torchipu.ir.program import (
    AllReduce,
    Call,
    ComputeSet,
    Copy,
    Execute,
    Gather,
    HostCopy,
    If,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Sync,
    parts_of,
)
from torchipu.target import Target

CATEGORIES = ("compute", "exchange", "sync", "link", "all-reduce", "host")
REMOTE_PREFIX = "remote."  # streams of Streaming Memory


@dataclass(frozen=True, slots=True)
class Superstep:
    """Cycles of one compute set with the sync and the exchange before it."""

    name: str
    op: Op
    sync: int
    exchange: int
    compute: int
    runs: int = 1

    @property
    def cycles(self) -> int:
        """All three together, in all runs within one run of the function."""
        return (self.sync + self.exchange + self.compute) * self.runs


@dataclass(frozen=True, slots=True)
class Choice:
    """Cycles that depend on data.

    Attributes:
        op: The ``cond``, or the ``while_loop``.
        cycles: Of one run of each branch, or of one trip of the loop, its test included.
        runs: How often it is reached within one run of the function.
    """

    op: Op
    cycles: tuple[int, ...]
    runs: int


@dataclass(frozen=True, slots=True)
class FunctionCost:
    """Cycles of one run of a function.

    Attributes:
        name: Name of the function.
        cycles_by_category: Cycles for each of ``CATEGORIES``: of a choice those of its dearest branch, of a loop
            that ends when a test says so those of one trip.
        supersteps: Its compute sets in order.
        choices: What depends on data.
        overlapped: Cycles of transfers that run beside the rest, by ``HostCopy.overlap``; by as much as they are
            longer than the rest they are among ``cycles_by_category`` too.
        beside: Cycles of that rest.
        load_cycles: That inputs take from the host's buffers to the tiles, overlapping or not.
    """

    name: str
    cycles_by_category: Mapping[str, int]
    supersteps: tuple[Superstep, ...]
    choices: tuple[Choice, ...] = ()
    overlapped: Mapping[str, int] = field(default_factory=dict)
    beside: int = 0
    load_cycles: int = 0

    @property
    def cycles(self) -> int:
        """Cycles in all."""
        return sum(self.cycles_by_category.values())

    @property
    def first_cycles(self) -> int:
        """Cycles of the first run of an update, in which streams that overlap in the accumulation loop do not yet."""
        if not self.overlapped:
            return self.cycles
        waits = self.overlapped.get("accumulation_loop", 0)
        return self.beside + waits + max(0, sum(self.overlapped.values()) - waits - self.beside)

    @property
    def recompute_cycles(self) -> int:
        """Cycles, among them, of forward ops that the backward runs again."""
        return sum(step.cycles for step in self.supersteps if "recomputed_from" in step.op.attrs)


@dataclass(slots=True)
class _Count:
    """Running totals of a function, of which each replica takes so many IPUs."""

    ipus_per_replica: int = 1
    cycles: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0))
    supersteps: list[Superstep] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    sync: int = 0
    exchange: int = 0
    overlapped: dict[str, int] = field(default_factory=dict)

    def add(self, category: str, cycles: int, times: int) -> None:
        self.cycles[category] += cycles * times

    def close(self, compute_set: ComputeSet, compute: int, times: int) -> None:
        self.supersteps.append(Superstep(compute_set.name, compute_set.op, self.sync, self.exchange, compute, times))
        self.sync = self.exchange = 0

    def join(self, other: _Count) -> None:
        """Take over the cycles of a part, counted by itself."""
        for category, cycles in other.cycles.items():
            self.cycles[category] += cycles
        for kind, cycles in other.overlapped.items():
            self.overlapped[kind] = self.overlapped.get(kind, 0) + cycles

    def show(self, other: _Count, times: int) -> None:
        """Take over the supersteps of a part as often as they count, and what depends on data in it."""
        self.supersteps += [replace(step, runs=step.runs * times) for step in other.supersteps]
        self.choices += other.choices


def function_cost(
    name: str, program: Program, target: Target, functions: Mapping[str, Program], ipus_per_replica: int = 1,
) -> FunctionCost:
    """Return the cycles of one run of a function.

    Args:
        name: Its name.
        program: Its body.
        target: The machine.
        functions: All functions, for calls within the body.
        ipus_per_replica: IPUs of each of the replicas that add up gradients.

    Raises:
        TypeError: The body holds a program that belongs at the top, such as a pipeline cycle.
    """
    count = _Count(ipus_per_replica)
    _walk(program, target, functions, count, 1)
    beside = sum(count.cycles.values())
    count.cycles["host"] += max(0, sum(count.overlapped.values()) - beside)
    return FunctionCost(
        name, count.cycles, tuple(count.supersteps), tuple(count.choices), count.overlapped, beside,
        host_cycles(target, streamed_bytes(program)),
    )


def _walk(program: Program, target: Target, functions: Mapping[str, Program], count: _Count, times: int) -> None:
    match program:
        case Sequence(body=body):
            for part in body:
                _walk(part, target, functions, count, times)
        case Repeat(count=repeats, body=body):
            _walk(body, target, functions, count, times * repeats)
        case Call(function=function):
            _walk(functions[function], target, functions, count, times)
        case Execute(compute_set=compute_set):
            _, compute = leaf_cycles(program, target, count.ipus_per_replica)
            count.add("compute", compute, times)
            count.close(compute_set, compute, times)
        case If(op=op) | RepeatWhile(op=op):
            _walk_choice(program, target, functions, count, times, op)
        case HostCopy(overlap=overlap) if overlap != "none":
            _, cycles = leaf_cycles(program, target, count.ipus_per_replica)
            count.overlapped[overlap] = count.overlapped.get(overlap, 0) + cycles * times
        case _:
            category, cycles = leaf_cycles(program, target, count.ipus_per_replica)
            count.sync = cycles if category == "sync" else count.sync
            count.exchange += cycles if category == "exchange" else 0
            count.add(category, cycles, times)


def _walk_choice(
    program: Program, target: Target, functions: Mapping[str, Program], count: _Count, times: int, op: Op,
) -> None:
    """Count the dearest branch of a choice, or the test and one trip of a loop, and state all of them."""
    parts = [_Count(count.ipus_per_replica) for _ in parts_of(program)]
    for part, inner in zip(parts, parts_of(program), strict=True):
        _walk(inner, target, functions, part, times)
    spent = [sum(part.cycles.values()) for part in parts]
    dearest = spent.index(max(spent))
    for position, part in enumerate(parts):
        counts = position == dearest or isinstance(program, RepeatWhile)
        count.show(part, int(counts))
        if counts:
            count.join(part)
    once = [cycles // max(1, times) for cycles in spent]
    count.choices.append(Choice(op, (sum(once),) if isinstance(program, RepeatWhile) else tuple(once), times))


def leaf_cycles(leaf: Program, target: Target, ipus_per_replica: int = 1) -> tuple[str, int]:
    """Return the category and the cycles of one run of a program that holds no others.

    Args:
        leaf: The program.
        target: The machine.
        ipus_per_replica: IPUs of each of the replicas that add up gradients.

    Raises:
        TypeError: It holds others, or belongs at the top.
    """
    match leaf:
        case Sync(scope=scope):
            return "sync", sync_cycles(target, scope)
        case Copy():
            return copy_cycles(leaf, target)
        case Gather(max_tile_bytes=busiest, fragments=fragments):
            return "exchange", exchange_cycles(target, busiest, fragments)
        case Execute(compute_set=compute_set):
            # Groups of one compute set share the tiles: the slowest vertex counts.
            return "compute", max((group.cycles for group in compute_set.groups), default=0)
        case HostCopy(stream=stream, variable=variable):
            move = streaming_cycles if stream.startswith(REMOTE_PREFIX) else host_cycles
            return "host", move(target, variable.device_bytes)
        case AllReduce(variables=variables, replicas=replicas, kind=kind):
            total_bytes = sum(variable.device_bytes for variable in variables)
            return "all-reduce", collective_cycles(target, kind, total_bytes, replicas, ipus_per_replica)
    raise TypeError(f"{type(leaf).__name__} inside a function")


def copy_cycles(copy: Copy, target: Target) -> tuple[str, int]:
    """Return the category and the cycles of a copy, without its sync."""
    if copy.src.ipu != copy.dst.ipu:
        return "link", link_cycles(target, copy.total_bytes)
    return "exchange", exchange_cycles(target, copy.max_tile_bytes, copy.fragments)
