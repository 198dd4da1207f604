"""The compiler in one column: passes over the graph, then schedule, mapping, program, memory and cost."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torchipu.ops  # noqa: F401  its records fill the op table
from torchipu.device.cost import Cost, estimate
from torchipu.device.locations import locate
from torchipu.device.lower import lower
from torchipu.device.memory import assign_memory
from torchipu.device.schedule import make_schedule
from torchipu.device.tile_mapping import map_tiles
from torchipu.ir import text
from torchipu.ir.graph import Graph
from torchipu.ir.program import Executable
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.types import Leg
from torchipu.ir.verify import verify_executable, verify_graph, verify_schedule
from torchipu.options import Options
from torchipu.passes.canonicalise import canonicalise
from torchipu.passes.gradient_sums import accumulated_apart
from torchipu.passes.placement import place
from torchipu.passes.precision import set_precision
from torchipu.passes.recompute import recompute
from torchipu.target import Target

GraphPass = Callable[[Graph, Options, Target], Graph]

DUMP_VARIABLE = "TORCHIPU_DUMP"
"""Environment variable with the directory for dumps, where the options name none."""

VERIFY_VARIABLE = "TORCHIPU_VERIFY"
"""Environment variable that is 1 where the IR is checked although the options do not say so, as in our tests."""

PASSES: tuple[tuple[str, GraphPass], ...] = (
    ("canonicalise", lambda graph, options, target: canonicalise(graph)),
    ("placement", place),
    ("precision", lambda graph, options, target: set_precision(graph, options, target)),
    ("recompute", lambda graph, options, target: recompute(graph, options)),
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compilation yields: the placed graph for values, the executable for cycles and memory.

    Attributes:
        graph: After all graph passes; the host plan is made from it.
        schedule: When each stage runs.
        executable: The device program with addresses.
        cost: Cycles.
        target: The machine.
        options: As given.
    """

    graph: Graph
    schedule: Schedule
    executable: Executable
    cost: Cost
    target: Target
    options: Options


def compile_graph(
    graph: Graph, options: Options, target: Target, *, micro_batches: int = 1, instances: int = 1,
) -> Compiled:
    """Run all passes.

    Args:
        graph: As captured.
        options: What the user asked for.
        target: The machine.
        micro_batches: Micro-batches between two weight updates, or in one inference call.
        instances: Processes, each of which runs ``options.replicas`` replicas of the program.

    Raises:
        PlacementError: An op cannot be placed.
        ScheduleError: The pipeline does not fit the number of micro-batches.
        OutOfTileMemoryError: The fullest tile does not hold the program.
    """
    dump = Dump(dump_directory(options), graph.name)
    check = is_verifying(options)
    dump.write("00-captured", lambda: text.format_graph(graph))
    if check:
        verify_graph(graph, "capture")
    for number, (name, run) in enumerate(PASSES, start=1):
        graph = run(graph, options, target)
        dump.write(f"{number:02d}-{name}", partial(text.format_graph, graph))
        if check:
            verify_graph(graph, name)
    schedule = schedule_of(graph, options, micro_batches)
    dump.write("05-schedule", lambda: text.format_schedule(schedule))
    iterations = options.device_iterations if has_leg(graph, Leg.UPDATE) else 1
    target = computing(target, options)
    executable = lowered(graph, schedule, options, target, device_iterations=iterations, micro_batches=micro_batches)
    executable = replace(executable, instances=instances)
    dump.write("06-lower", lambda: text.format_executable(executable))
    if check:
        verify_executable(executable, "lower", target.num_tiles)
    executable = assign_memory(executable, target, allow_overflow=options.allow_out_of_memory)
    dump.write("07-memory", lambda: text.format_executable(executable))
    if check:
        verify_executable(executable, "memory", target.num_tiles)
    cost = estimate(executable, target, schedule, sync_pattern=options.sync_pattern)
    return Compiled(graph, schedule, executable, cost, target, options)


def computing(target: Target, options: Options) -> Target:
    """Return the machine without the tiles that are set apart for transfers."""
    return replace(target, num_tiles=target.num_tiles - options.io_tiles) if options.io_tiles else target


def try_graph(graph: Graph, options: Options, target: Target, *, micro_batches: int = 1) -> Compiled:
    """Run the passes as far as cycles and memory need: no checks, no dumps, and variables without addresses.

    Arguments and errors are those of ``compile_graph``, but for memory: what does not fit is no error.
    """
    for _, run in PASSES:
        graph = run(graph, options, target)
    schedule = schedule_of(graph, options, micro_batches)
    target = computing(target, options)
    executable = lowered(graph, schedule, options, target, device_iterations=1, micro_batches=micro_batches)
    cost = estimate(executable, target, schedule, sync_pattern=options.sync_pattern)
    return Compiled(graph, schedule, executable, cost, target, options)


def lowered(
    graph: Graph, schedule: Schedule, options: Options, target: Target, *, device_iterations: int, micro_batches: int,
) -> Executable:
    """Return the device program of a placed graph, without addresses; the target is that of the tiles that compute."""
    graph = accumulated_apart(graph)
    executable = lower(
        graph, schedule, map_tiles(graph, target), target, device_iterations=device_iterations,
        micro_batches=micro_batches, replicas=options.replicas,
    )
    return locate(executable, options, target)


def is_verifying(options: Options) -> bool:
    """Whether the IR is checked after each pass: as the options say, else as ``TORCHIPU_VERIFY`` says."""
    return os.environ.get(VERIFY_VARIABLE) == "1" if options.verify is None else options.verify


def dump_directory(options: Options) -> str | None:
    """Return where the IR is written to: as the options say, else as ``TORCHIPU_DUMP`` says, else None."""
    return options.dump or os.environ.get(DUMP_VARIABLE) or None


def has_leg(graph: Graph, leg: Leg) -> bool:
    """Whether any op of the graph belongs to a leg."""
    return any(op.leg is leg for op in graph.ops)


def schedule_of(graph: Graph, options: Options, micro_batches: int) -> Schedule:
    """Build the schedule of a placed graph.

    A graph that holds only one leg (the Dynamo door compiles forward and backward apart) runs its stages one
    after another.
    """
    ipu_by_stage: dict[int, int] = {}
    for op in graph.ops:
        if op.placement is not None and op.leg is not Leg.UPDATE:
            ipu_by_stage.setdefault(op.placement.stage, op.placement.ipu)
    num_stages = max(ipu_by_stage, default=0) + 1
    ipus = tuple(ipu_by_stage.get(stage, 0) for stage in range(num_stages))
    forward, backward = has_leg(graph, Leg.FORWARD), has_leg(graph, Leg.BACKWARD)
    if backward and not forward:
        return _backward_only(num_stages, ipus)
    execution = options.execution
    if not _is_phased(options) and (num_stages == 1 or micro_batches == 1) and not has_leg(graph, Leg.UPDATE):
        execution = "sharded"  # there is nothing to overlap
    schedule = make_schedule(
        num_stages, ipus, micro_batches, execution, backward, separate_backward=options.separate_backward_phase,
    )
    if is_verifying(options):
        verify_schedule(schedule, num_stages, micro_batches, "schedule")
    return schedule


def _is_phased(options: Options) -> bool:
    return options.execution.endswith("_phased")


def _backward_only(num_stages: int, ipu_by_stage: tuple[int, ...]) -> Schedule:
    num_ipus = max(ipu_by_stage) + 1
    rows = []
    for stage in reversed(range(num_stages)):
        row: list[tuple[Action, ...]] = [()] * num_ipus
        row[ipu_by_stage[stage]] = (Action(stage, Leg.BACKWARD, 0),)
        rows.append(tuple(row))
    return Schedule(tuple(rows))


class Dump:
    """Writes each stage of the compiler to a directory, when one is given.

    Args:
        directory: Where to, or None.
        name: Name of the graph, part of each file's name.
    """

    def __init__(self, directory: str | None, name: str) -> None:
        self.directory = Path(directory) if directory else None
        self.name = name

    def write(self, stage: str, content: Callable[[], str]) -> None:
        """Write one stage; ``content`` is called only if there is a directory."""
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / f"{self.name}.{stage}.txt").write_text(content() + "\n", encoding="utf-8")
