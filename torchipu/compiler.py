"""The compiler in one column: every stage from the captured graph to cycles, in the order in which they run."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torchipu.ops  # noqa: F401  its records fill the op table
from torchipu import forks
from torchipu.device.cost import Cost, chart, estimate
from torchipu.device.gradient_sums import accumulated_apart
from torchipu.device.locations import locate
from torchipu.device.lower import lower
from torchipu.device.memory import assign_memory
from torchipu.device.order import ordered_for_memory
from torchipu.device.schedule import ipus_of_stages, schedule_of
from torchipu.device.tile_mapping import map_tiles
from torchipu.errors import IpuError
from torchipu.ir import text
from torchipu.ir.graph import Graph, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import Executable
from torchipu.ir.schedule import Schedule
from torchipu.ir.types import Leg
from torchipu.ir.verify import verify_executable, verify_graph, verify_mappings, verify_schedule
from torchipu.options import Options
from torchipu.passes.canonicalise import canonicalise
from torchipu.passes.layers import find_layers
from torchipu.passes.padded_sums import concatenate_padded_sums
from torchipu.passes.placement import place
from torchipu.passes.precision import set_precision
from torchipu.passes.random_streams import number_random_streams
from torchipu.passes.recompute import recompute
from torchipu.passes.shared_indices import share_indices
from torchipu.passes.written_pieces import concatenate_written_pieces
from torchipu.remembered import Remembered
from torchipu.target import Target, lookup_target

DUMP_VARIABLE = "TORCHIPU_DUMP"
"""Environment variable with the directory for dumps, where the options name none."""

VERIFY_VARIABLE = "TORCHIPU_VERIFY"
"""Environment variable that is 1 where the IR is checked although the options do not say so, as in our tests."""


@dataclass(slots=True)
class Compilation:
    """What a compilation is given, and what its stages have made so far.

    Attributes:
        graph: After each graph pass that has run; the host plan is made from the last one.
        options: What the user asked for.
        target: The machine, less the tiles that are set apart for transfers.
        micro_batches: Micro-batches between two weight updates, or in one inference call.
        instances: Processes, each of which runs ``options.replicas`` replicas of the program.
        device_iterations: How often the schedule runs in a call.
        schedule: When each stage of the model runs.
        device_graph: The graph that the device program is made from.
        mappings: On which tiles each tensor of it lies.
        executable: The device program; with addresses from the stage ``memory`` on.
        cost: Its cycles.
    """

    graph: Graph
    options: Options
    target: Target
    micro_batches: int
    instances: int
    device_iterations: int
    schedule: Schedule = field(init=False)
    device_graph: Graph = field(init=False)
    mappings: Mapping[Tensor, TileMapping] = field(init=False)
    executable: Executable = field(init=False)
    cost: Cost = field(init=False)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the compiler.

    Attributes:
        name: Of the pass.
        makes: The attribute of the compilation that it sets: ``graph``, ``schedule`` ...
        run: Returns what that becomes.
    """

    name: str
    makes: str
    run: Callable[[Compilation], object]


STAGES: tuple[Stage, ...] = (
    Stage("canonicalise", "graph", lambda c: canonicalise(c.graph)),
    Stage("written_pieces", "graph", lambda c: concatenate_written_pieces(c.graph)),
    Stage("padded_sums", "graph", lambda c: concatenate_padded_sums(c.graph)),
    Stage("shared_indices", "graph", lambda c: share_indices(c.graph)),
    Stage("placement", "graph", lambda c: place(c.graph, c.options, c.target, c.instances)),
    Stage("layers", "graph", lambda c: find_layers(c.graph)),
    Stage("precision", "graph", lambda c: set_precision(c.graph, c.options, c.target)),
    Stage("random_streams", "graph", lambda c: number_random_streams(c.graph)),
    Stage("recompute", "graph", lambda c: recompute(c.graph, c.options)),
    Stage("schedule", "schedule", lambda c: schedule_of(c.graph, c.options, c.micro_batches)),
    Stage("gradient_sums", "device_graph", lambda c: accumulated_apart(c.graph)),
    Stage("order", "device_graph", lambda c: ordered_for_memory(c.device_graph)),
    Stage("tile_mapping", "mappings", lambda c: map_tiles(c.device_graph, c.target)),
    Stage("lower", "executable", lambda c: lower(
        c.device_graph, c.schedule, c.mappings, c.target, device_iterations=c.device_iterations,
        micro_batches=c.micro_batches, replicas=c.options.replicas, instances=c.instances,
        outlining=c.options.outlining,
    )),
    Stage("locations", "executable", lambda c: locate(c.executable, c.options, c.target)),
    Stage("memory", "executable", lambda c: assign_memory(
        c.executable, c.target, allow_overflow=c.options.allow_out_of_memory, io_tiles=c.options.io_tiles,
    )),
    Stage("cost", "cost", lambda c: estimate(
        c.executable, c.target, c.schedule, sync_pattern=c.options.sync_pattern,
        prefetch_depth=c.options.prefetch_depth,
    )),
)

NOT_ON_TRIAL = frozenset({"memory"})
"""Stages that cycles and the need of memory do not depend on."""

_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "graph": text.format_graph, "schedule": text.format_schedule, "device_graph": text.format_graph,
    "mappings": text.format_mappings, "executable": text.format_executable, "cost": lambda cost: chart(cost.timeline),
}
_CHECKS: Mapping[str, Callable[[Compilation, str], None]] = {
    "graph": lambda c, after: verify_graph(c.graph, after),
    "schedule": lambda c, after: verify_schedule(c.schedule, len(ipus_of_stages(c.graph)), c.micro_batches, after),
    "device_graph": lambda c, after: verify_graph(c.device_graph, after),
    "mappings": lambda c, after: verify_mappings(c.mappings, c.target.num_tiles, after),
    "executable": lambda c, after: verify_executable(c.executable, after, c.target.num_tiles),
    "cost": lambda c, after: None,
}


class Verdict(Protocol):
    """Whether a program is known to compile, and to fit."""

    @property
    def is_known(self) -> bool:
        """Whether it was found before."""
        ...

    def note(self) -> None:
        """Remember that it was found now."""
        ...


class OnDevice:
    """What the stages behind the graph passes make; they run once, when somebody first asks for it.

    Args:
        make: Runs them: schedule, device program and cycles.
    """

    def __init__(self, make: Callable[[], tuple[Schedule, Executable, Cost]]) -> None:
        self._make: Callable[[], tuple[Schedule, Executable, Cost]] | None = make
        self._made: tuple[Schedule, Executable, Cost] | None = None
        self._lock = forks.lock()

    def __call__(self) -> tuple[Schedule, Executable, Cost]:
        """Return schedule, device program and cycles.

        Raises:
            IpuError: They cannot be made.
        """
        with self._lock:
            if self._made is None:
                assert self._make is not None
                self._made = self._make()
                self._make = None  # with the mappings that it holds
            return self._made


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """What a compilation yields: the placed graph for values, the executable for cycles and memory.

    Attributes:
        graph: After all graph passes; the host plan is made from it.
        on_device: Makes schedule, executable and cost, unless they are there.
        target: The machine, less the tiles that are set apart for transfers.
        options: As given.
        captured: The graph before all passes: what another compilation begins from.
        micro_batches: As given.
        instances: As given.
        seconds_by_stage: That each stage that has run took of its thread's time, by its name, in order.
    """

    graph: Graph
    on_device: OnDevice
    target: Target
    options: Options
    captured: Graph
    micro_batches: int
    instances: int
    seconds_by_stage: Mapping[str, float]

    @property
    def schedule(self) -> Schedule:
        """When each stage of the model runs."""
        return self.on_device()[0]

    @property
    def executable(self) -> Executable:
        """The device program with addresses."""
        return self.on_device()[1]

    @property
    def cost(self) -> Cost:
        """Cycles."""
        return self.on_device()[2]


def compile_graph(
    graph: Graph, options: Options, target: Target, *, micro_batches: int = 1, instances: int = 1,
    judge: Callable[[Graph], Verdict | None] | None = None,
) -> Compiled:
    """Run all stages; those for the device only when they are asked for, where the program is known to fit.

    Args:
        graph: As captured.
        options: What the user asked for.
        target: The machine.
        micro_batches: Micro-batches between two weight updates, or in one inference call.
        instances: Processes, each of which runs ``options.replicas`` replicas of the program.
        judge: Gives what is known of a program, by its graph after all graph passes; None where nothing can be.

    Raises:
        PlacementError: An op cannot be placed.
        ScheduleError: The pipeline does not fit the number of micro-batches.
        OutOfTileMemoryError: The fullest tile does not hold the program.
    """
    iterations = options.device_iterations if graph.has_leg(Leg.UPDATE) else 1
    compilation = Compilation(graph, options, computing(target, options), micro_batches, instances, iterations)
    dump = Dump(dump_directory(options), graph.name)
    dump.write("00-captured", lambda: text.format_graph(graph))
    if is_verifying(options):
        verify_graph(graph, "capture")
    is_looked_at = is_verifying(options) or dump.directory is not None
    return _run(compilation, dump, check=is_verifying(options), judge=None if is_looked_at else judge)


def place_graph(graph: Graph, options: Options, target: Target) -> Graph:
    """Run the graph passes alone: no schedule and no device program, no checks and no dumps.

    Args:
        graph: As captured; its sizes may be known only when it is called.
        options: What the user asked for.
        target: The machine.

    Raises:
        PlacementError: An op cannot be placed.
    """
    compilation = Compilation(graph, options, computing(target, options), 1, 1, 1)
    for stage in STAGES:
        if stage.makes == "graph":
            compilation.graph = stage.run(compilation)  # type: ignore[assignment]
    return compilation.graph


def try_graph(
    graph: Graph, options: Options, target: Target, *, micro_batches: int = 1, instances: int = 1,
    known: Remembered | None = None,
) -> Compiled:
    """Run the stages that cycles and the need of memory depend on: no checks, no dumps, variables without addresses.

    Arguments and errors are those of ``compile_graph``, but for memory: what does not fit is no error.

    Args:
        graph: As captured.
        options: What the user asked for.
        target: The machine.
        micro_batches: Micro-batches between two weight updates, or in one inference call.
        instances: Processes, each of which runs ``options.replicas`` replicas of the program.
        known: Stages of trials before this one, which run again only where what they read has changed.
    """
    compilation = Compilation(graph, options, computing(target, options), micro_batches, instances, 1)
    return _run(compilation, Dump(None, graph.name), check=False, without=NOT_ON_TRIAL, known=known)


def _run(
    compilation: Compilation, dump: Dump, *, check: bool, without: Container[str] = (), known: Remembered | None = None,
    judge: Callable[[Graph], Verdict | None] | None = None,
) -> Compiled:
    captured, seconds = compilation.graph, dict[str, float]()

    def run(stages: Sequence[Stage]) -> None:
        for stage in stages:
            if stage.name not in without:
                _run_stage(stage, compilation, captured, dump, check, known, seconds)

    def lowered() -> tuple[Schedule, Executable, Cost]:
        run([stage for stage in STAGES if stage.makes != "graph"])
        return compilation.schedule, compilation.executable, compilation.cost

    run([stage for stage in STAGES if stage.makes == "graph"])
    verdict = None if judge is None else judge(compilation.graph)
    on_device = OnDevice(lowered)
    if verdict is None or not verdict.is_known:
        on_device()
        if verdict is not None:
            verdict.note()
    c = compilation
    return Compiled(c.graph, on_device, c.target, c.options, captured, c.micro_batches, c.instances, seconds)


def _run_stage(
    stage: Stage, compilation: Compilation, captured: Graph, dump: Dump, check: bool, known: Remembered | None,
    seconds: dict[str, float],
) -> None:
    """Run one stage, and note what it made and how long it took."""
    began = time.thread_time()
    try:
        made = stage.run(compilation) if known is None else known.of(stage.name, stage.run, compilation)
    except (IpuError, MemoryError):
        raise
    except Exception as error:
        raise _internal_error(stage, error, compilation, captured) from error
    seconds[stage.name] = time.thread_time() - began
    setattr(compilation, stage.makes, made)
    dump.write(f"{STAGES.index(stage) + 1:02d}-{stage.name}", partial(_TEXTS[stage.makes], made))
    if check:
        _CHECKS[stage.makes](compilation, stage.name)


def _internal_error(stage: Stage, error: Exception, compilation: Compilation, captured: Graph) -> IpuError:
    """Return the error for a stage that failed in a way that none should."""
    from torchipu.repeating import internal_error  # which names this module

    c = compilation
    return internal_error(
        stage.name, error, captured, c.options, lookup_target(c.options.target), micro_batches=c.micro_batches,
        instances=c.instances,
    )


def computing(target: Target, options: Options) -> Target:
    """Return the machine without the tiles that are set apart for transfers."""
    return replace(target, num_tiles=target.num_tiles - options.io_tiles) if options.io_tiles else target


def is_verifying(options: Options) -> bool:
    """Whether the IR is checked after each stage: as the options say, else as ``TORCHIPU_VERIFY`` says."""
    return os.environ.get(VERIFY_VARIABLE) == "1" if options.verify is None else options.verify


def dump_directory(options: Options) -> str | None:
    """Return where the IR is written to: as the options say, else as ``TORCHIPU_DUMP`` says, else None."""
    return options.dump or os.environ.get(DUMP_VARIABLE) or None


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
        """Write one stage; ``content`` is called only if there is a directory that can be written."""
        if self.directory is None:
            return
        told = content() + "\n"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / f"{self.name}.{stage}.txt").write_text(told, encoding="utf-8")
        except OSError as error:
            warnings.warn(f"torchipu: {self.name} is not dumped from stage {stage} on: {error}", stacklevel=2)
            self.directory = None
