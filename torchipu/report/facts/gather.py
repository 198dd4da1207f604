"""Gathers all that a report tells of a compiled program."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from typing import Any, NamedTuple

from torchipu.device.cost import Cost
from torchipu.device.cost.by_tile import TileWork
from torchipu.ir.graph import Op
from torchipu.ir.program import Executable, Execute, leaves_of
from torchipu.options import Options
from torchipu.report.facts import rows
from torchipu.report.facts.execution import execution_rows
from torchipu.report.facts.memory import memory_rows
from torchipu.report.facts.observed import Observed, compile_rows, host_rows, numerics_facts, numerics_rows
from torchipu.report.facts.patterns import Patterns
from torchipu.report.facts.pipeline import pipeline_facts, stage_rows
from torchipu.report.facts.programs import program_rows
from torchipu.report.profile import Profile
from torchipu.report.trust import Judged, trust_in
from torchipu.target import Target, lookup_target

UNITS: Mapping[str, str] = {
    "clock_hz": "Hz", "tile_memory_bytes": "B", "cycles_per_update": "cycles", "microseconds_per_update": "us",
    "samples_per_second": "samples/s", "host_buffer_bytes": "B", "host_waits_by_ipu": "cycles",
}
"""Of those figures that have one."""
EXACT = frozenset({
    "target", "title", "clock_hz", "tile_memory_bytes", "num_ipus", "replicas", "is_training", "micro_batches",
    "micro_batch_size", "device_iterations", "num_compute_sets", "supersteps_per_update",
    "host_buffer_bytes",
})
"""Figures that are counted or given, and no prediction."""
CASTS = frozenset({"prims.convert_element_type.default", "aten._to_copy.default"})
"""Ops that do nothing but change the type of elements."""
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

    def extended(
        self, facts: Iterable[rows.Fact] = (), tables: Mapping[str, tuple[NamedTuple, ...]] | None = None,
    ) -> Facts:
        """Return these with more facts, and with other tables.

        Args:
            facts: Of new names.
            tables: In the place of those of the same names.
        """
        return Facts({**self.tables, **(tables or {}), "facts": (*self.tables["facts"], *facts)})


def facts_of(
    name: str, executable: Executable, cost: Cost, target: Target, options: Options, profile: Profile,
    observed: Observed | None = None,
) -> Facts:
    """Return what a report tells of a program.

    Args:
        name: Of the program.
        executable: With addresses.
        cost: Its cycles.
        target: The machine, less the tiles that are set apart for transfers.
        options: It was compiled with.
        profile: Of it.
        observed: What was seen while it was made and ran.
    """
    seen = observed or Observed()
    work, patterns = TileWork(target.num_tiles), Patterns()
    programs = program_rows(executable, work, patterns)
    execution = execution_rows(executable, cost, target, programs.numbers, work, patterns)
    memory = memory_rows(executable, target, options.io_tiles, execution.numbers, work, patterns)
    stages = stage_rows(executable, cost, memory.variables, execution.operations)
    facts = (
        *_facts(name, target, options, profile), *pipeline_facts(cost, stages), *_counts(executable, seen),
        *_trust(cost, lookup_target(options.target), profile), *numerics_facts(seen),
    )
    return Facts({
        "facts": facts, "operations": execution.operations,
        "functions": execution.functions, "steps": execution.steps, "runs": execution.runs,
        "variables": memory.variables, "shares": memory.shares, "tiles": memory.tiles,
        "tile_categories": memory.tile_categories, "liveness": memory.liveness,
        "settings": tuple(_settings(options)), "advice": (), "alternatives": (),
        "host": host_rows(seen), "numerics": numerics_rows(seen.statistics, execution.operations),
        "compile": compile_rows(seen.events), "stages": stages,
        "flows": execution.flows,
        "programs": programs.programs, "program_variables": programs.program_variables,
        "vertices": programs.vertices, "codelets": programs.codelets, "exchanges": memory.exchanges,
        "patterns": tuple(patterns.rows()),
    })


def _facts(name: str, target: Target, options: Options, profile: Profile) -> Iterator[rows.Fact]:
    yield rows.Fact("program", json.dumps(name), "", "exact")
    yield rows.Fact("num_tiles", json.dumps(target.num_tiles + options.io_tiles), "", "exact")
    yield rows.Fact("io_tiles", json.dumps(options.io_tiles), "", "exact")
    yield rows.Fact("code_region_bytes", json.dumps(target.code_region_bytes), "B", "exact")
    for figure, value in asdict(profile).items():
        if figure not in SHOWN_ELSEWHERE:
            confidence = "exact" if figure in EXACT else "modelled"
            yield rows.Fact(figure, json.dumps(value), UNITS.get(figure, ""), confidence)


def _counts(executable: Executable, observed: Observed) -> Iterator[rows.Fact]:
    """Yield how many ops there are that somebody may want fewer of, and how often the model was taken apart."""
    ops = list(_ops(executable))
    counts = {
        "casts": sum(op.target in CASTS for op in ops), "generic_operations": sum(op.kind == "generic" for op in ops),
        "graph_breaks": sum(one.kind == "graph break" for one in observed.events),
        "eager_frames": sum(one.kind == "eager frame" for one in observed.events),
        "recompilations": sum(one.kind == "recompilation" for one in observed.events),
    }
    for name, count in counts.items():
        yield rows.Fact(name, json.dumps(count), "", "exact")


def _ops(executable: Executable) -> Iterable[Op]:
    """Return the ops of the program, each once."""
    leaves = (leaf for program in executable.functions.values() for leaf in leaves_of(program))
    return {id(leaf.compute_set.op): leaf.compute_set.op for leaf in leaves if isinstance(leaf, Execute)}.values()


def _trust(cost: Cost, target: Target, profile: Profile) -> Iterator[rows.Fact]:
    """Yield how far programs like this were off from what was measured of IPUs."""
    trust = trust_in(cost, target, profile)
    judged: dict[str, Judged | None] = {"cycles_per_update": trust.rate, "fullest_tile_bytes": trust.memory}
    for name, one in judged.items():
        if one is not None:
            said = {"median": one.median, "p90": one.p90, "bias": one.bias, "rows": one.rows, "source": one.source}
            yield rows.Fact(f"trust.{name}", json.dumps(said), "", "measured")
    yield rows.Fact("trust.unscored_share", json.dumps(trust.unscored_share), "", "modelled")
    yield rows.Fact("trust.extrapolations", json.dumps(list(trust.extrapolations)), "", "exact")


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
