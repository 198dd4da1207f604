"""What torch's logs are told of a program.

Plan, memory and schedule are artifacts of ``TORCH_TRACE``, which tlparse shows beside Dynamo's.
``TORCH_LOGS="torchipu"`` has a line for each program, ``"+torchipu"`` one for each stage of the compiler too.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from dataclasses import asdict

from torch._logging._internal import trace_log, trace_structured

from torchipu.report.captured import captured
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.profile import Profile
from torchipu.report.recorder import HasProgram, Recorded
from torchipu.report.text import format_full

_LOG = logging.getLogger("torchipu.programs")


def emit(profile: Profile, program: HasProgram) -> None:
    """Tell torch's logs of a program; artifacts are not computed unless ``TORCH_TRACE`` asks for them.

    Args:
        profile: Of the program.
        program: What was compiled.
    """
    name = program.graph.name
    _LOG.info(
        "%s: %d ops compiled in %.3f s for %s", name, len(program.graph.ops), sum(program.seconds_by_stage.values()),
        program.target.name,
    )
    for stage, seconds in program.seconds_by_stage.items():
        _LOG.debug("%s: %s took %.3f s", name, stage, seconds)
    if not _is_traced():
        return
    facts = functools.cache(Recorded(profile, program).facts)
    _emit(f"ipu_plan_{name}", "string", lambda: f"{captured(program.graph).text()}\n\n{format_full(profile)}\n")
    _emit(f"ipu_memory_{name}", "json", lambda: json.dumps(memory_of(profile, facts()), indent=1))
    _emit(f"ipu_schedule_{name}", "json", lambda: json.dumps(schedule_of(facts()), indent=1))


def is_wanted() -> bool:
    """Whether a log or a trace of torch's takes what is told of a program."""
    return _is_traced() or _LOG.isEnabledFor(logging.INFO)


def _is_traced() -> bool:
    # Torch's handler is there without a directory too, until it is first told something. Those of pytest are put on
    # every logger for the time of a test, and would have artifacts made for each program that a test compiles.
    return any(
        handler.level <= logging.DEBUG and getattr(handler, "root_dir", handler) is not None
        and not type(handler).__module__.startswith("_pytest.")
        for handler in trace_log.handlers
    )


def memory_of(profile: Profile, facts: Facts) -> dict[str, object]:
    """Return the fullest tile of each IPU, how full all tiles are, and the largest variables."""
    tiles: dict[str, list[int]] = {}
    for tile in facts.tables["tiles"]:
        assert isinstance(tile, rows.Tile)
        tiles.setdefault(f"ipu{tile.ipu}", []).append(tile.including_gaps)
    variables = [one for one in facts.tables["variables"] if isinstance(one, rows.Variable)]
    largest = sorted(variables, key=lambda one: -one.bytes)[:50]
    return {
        "tile_memory_bytes": profile.tile_memory_bytes,
        "fullest_tiles": [asdict(memory) for memory in profile.memory_by_ipu],
        "bytes_by_tile": tiles,
        "largest_variables": [one._asdict() for one in largest],
    }


def schedule_of(facts: Facts) -> dict[str, object]:
    """Return what each IPU runs when."""
    return {
        "clock_hz": facts.figure("clock_hz"), "cycles_per_update": facts.figure("cycles_per_update"),
        "runs": [run._asdict() for run in facts.tables["runs"]],
    }


def _emit(name: str, encoding: str, payload: Callable[[], str]) -> None:
    # A step compiles outside of Dynamo, so that there is no number of a frame to expect.
    trace_structured(
        "artifact", metadata_fn=lambda: {"name": name, "encoding": encoding}, payload_fn=payload, expect_trace_id=False,
    )
