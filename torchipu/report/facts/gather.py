"""Gathers all that a report tells of a compiled program."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from typing import Any, NamedTuple

from torchipu.device.cost import Cost
from torchipu.device.cost.by_tile import TileWork
from torchipu.ir.program import Executable
from torchipu.options import Options
from torchipu.report.facts import rows
from torchipu.report.facts.execution import execution_rows
from torchipu.report.facts.memory import memory_rows
from torchipu.report.facts.patterns import Patterns
from torchipu.report.facts.programs import program_rows
from torchipu.report.profile import Profile
from torchipu.target import Target

UNITS: Mapping[str, str] = {
    "clock_hz": "Hz", "tile_memory_bytes": "B", "cycles_per_update": "cycles", "microseconds_per_update": "us",
    "samples_per_second": "samples/s",
}
"""Of those figures that have one."""
EXACT = frozenset({
    "target", "title", "clock_hz", "tile_memory_bytes", "num_ipus", "replicas", "is_training", "micro_batches",
    "micro_batch_size", "device_iterations", "num_compute_sets", "supersteps_per_update",
})
"""Figures that are counted or given, and no prediction."""
SHOWN_ELSEWHERE = frozenset({"statistics", "timeline", "slowest_ops", "codelets"})
"""Figures that other tables hold, or that are texts made of these."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The tables of a report, by name as in `torchipu.report.facts.rows.TABLES`.

    Attributes:
        tables: Rows.
    """

    tables: Mapping[str, tuple[NamedTuple, ...]]

    def figure(self, name: str) -> Any:
        """Return a fact.

        Raises:
            KeyError: There is none of this name.
        """
        for fact in self.tables["facts"]:
            if isinstance(fact, rows.Fact) and fact.name == name:
                return json.loads(fact.value)
        raise KeyError(name)


def facts_of(
    name: str, executable: Executable, cost: Cost, target: Target, options: Options, profile: Profile,
) -> Facts:
    """Return what a report tells of a program.

    Args:
        name: Of the program.
        executable: With addresses.
        cost: Its cycles.
        target: The machine, less the tiles that are set apart for transfers.
        options: It was compiled with.
        profile: Of it.
    """
    work, patterns = TileWork(target.num_tiles), Patterns()
    programs = program_rows(executable, work, patterns)
    execution = execution_rows(executable, cost, target, programs.numbers, work, patterns)
    memory = memory_rows(executable, target, options.io_tiles, execution.numbers, work, patterns)
    return Facts({
        "facts": tuple(_facts(name, target, options, profile)), "operations": execution.operations,
        "functions": execution.functions, "steps": execution.steps, "runs": execution.runs,
        "variables": memory.variables, "shares": memory.shares, "tiles": memory.tiles,
        "tile_categories": memory.tile_categories, "liveness": memory.liveness,
        "settings": tuple(_settings(options)), "advice": (),
        "programs": programs.programs, "program_variables": programs.program_variables,
        "vertices": programs.vertices, "codelets": programs.codelets, "patterns": tuple(patterns.rows()),
    })


def _facts(name: str, target: Target, options: Options, profile: Profile) -> Iterator[rows.Fact]:
    yield rows.Fact("program", json.dumps(name), "", "exact")
    yield rows.Fact("num_tiles", json.dumps(target.num_tiles + options.io_tiles), "", "exact")
    yield rows.Fact("io_tiles", json.dumps(options.io_tiles), "", "exact")
    for figure, value in asdict(profile).items():
        if figure not in SHOWN_ELSEWHERE:
            confidence = "exact" if figure in EXACT else "modelled"
            yield rows.Fact(figure, json.dumps(value), UNITS.get(figure, ""), confidence)


def _settings(options: Options) -> Iterator[rows.Setting]:
    usual = Options()
    for field in fields(Options):
        yield rows.Setting("options", field.name, str(getattr(options, field.name)), str(getattr(usual, field.name)))
    versions = {
        "torchipu": version("torchipu"), "torch": version("torch"), "python": platform.python_version(),
        "system": platform.platform(),
    }
    for name, value in versions.items():
        yield rows.Setting("environment", name, value, value)
