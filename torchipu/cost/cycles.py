"""Cycles of straight-line programs: one function of the device program, superstep by superstep.

A superstep takes the sync, the exchange as its busiest tile has it, and the compute set as its slowest vertex has it;
nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchipu.cost.exchange import all_reduce_cycles, exchange_cycles, host_cycles, link_cycles, streaming_cycles
from torchipu.cost.sync import sync_cycles
from torchipu.ir.graph import Op
from torchipu.ir.program import AllReduce, Call, ComputeSet, Copy, Execute, HostCopy, Program, Repeat, Sequence, Sync
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

    @property
    def cycles(self) -> int:
        """All three together."""
        return self.sync + self.exchange + self.compute


@dataclass(frozen=True, slots=True)
class FunctionCost:
    """Cycles of one run of a function.

    Attributes:
        name: Name of the function.
        cycles_by_category: Cycles for each of ``CATEGORIES``.
        supersteps: Its compute sets in order.
    """

    name: str
    cycles_by_category: Mapping[str, int]
    supersteps: tuple[Superstep, ...]

    @property
    def cycles(self) -> int:
        """Cycles in all."""
        return sum(self.cycles_by_category.values())

    @property
    def recompute_cycles(self) -> int:
        """Cycles, among them, of forward ops that the backward runs again."""
        return sum(step.cycles for step in self.supersteps if "recomputed_from" in step.op.attrs)


@dataclass(slots=True)
class _Count:
    """Running totals of a function."""

    cycles: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0))
    supersteps: list[Superstep] = field(default_factory=list)
    sync: int = 0
    exchange: int = 0

    def add(self, category: str, cycles: int, times: int) -> None:
        self.cycles[category] += cycles * times

    def close(self, compute_set: ComputeSet, compute: int) -> None:
        self.supersteps.append(Superstep(compute_set.name, compute_set.op, self.sync, self.exchange, compute))
        self.sync = self.exchange = 0


def function_cost(name: str, program: Program, target: Target, functions: Mapping[str, Program]) -> FunctionCost:
    """Return the cycles of one run of a function.

    Args:
        name: Its name.
        program: Its body.
        target: The machine.
        functions: All functions, for calls within the body.

    Raises:
        TypeError: The body holds a program that belongs at the top, such as a pipeline cycle.
    """
    count = _Count()
    _walk(program, target, functions, count, 1)
    return FunctionCost(name, count.cycles, tuple(count.supersteps))


def _walk(program: Program, target: Target, functions: Mapping[str, Program], count: _Count, times: int) -> None:
    match program:
        case Sequence(body=body):
            for part in body:
                _walk(part, target, functions, count, times)
        case Repeat(count=repeats, body=body):
            _walk(body, target, functions, count, times * repeats)
        case Call(function=function):
            _walk(functions[function], target, functions, count, times)
        case Sync(scope=scope):
            count.sync = sync_cycles(target, scope)
            count.add("sync", count.sync, times)
        case Copy():
            category, cycles = copy_cycles(program, target)
            count.exchange += cycles if category == "exchange" else 0
            count.add(category, cycles, times)
        case Execute(compute_set=compute_set):
            # Groups of one compute set share the tiles: the slowest vertex counts.
            compute = max((group.cycles for group in compute_set.groups), default=0)
            count.add("compute", compute, times)
            count.close(compute_set, compute)
        case HostCopy(stream=stream, variable=variable):
            move = streaming_cycles if stream.startswith(REMOTE_PREFIX) else host_cycles
            count.add("host", move(target, variable.device_bytes), times)
        case AllReduce(variables=variables, replicas=replicas):
            total_bytes = sum(variable.device_bytes for variable in variables)
            count.add("all-reduce", all_reduce_cycles(target, total_bytes, replicas), times)
        case _:
            raise TypeError(f"{type(program).__name__} inside a function")


def copy_cycles(copy: Copy, target: Target) -> tuple[str, int]:
    """Return the category and the cycles of a copy, without its sync."""
    if copy.src.ipu != copy.dst.ipu:
        return "link", link_cycles(target, copy.total_bytes)
    return "exchange", exchange_cycles(target, copy.max_tile_bytes, copy.fragments)
