"""``trace.json.gz``: an iteration on a time line, in the format that Perfetto, speedscope and chrome://tracing read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts

LANES = ("functions", "compute", "exchange", "sync", "all-reduce", "link", "host", "transfer")
"""Threads of each IPU. Slices of a thread must not overlap but in whole, so that each category has one of its own."""
MOST_SLICES = 1_000_000
"""Steps that are drawn; a run beyond them has one slice in all."""


def trace_of(facts: Facts, most: int = MOST_SLICES) -> dict[str, Any]:
    """Return the trace as data.

    Each IPU is a process, each lane a thread, numbered from 1. Times are in microseconds; ``args`` hold cycles.

    Args:
        facts: Of the program.
        most: Steps that are drawn.

    Source of the format: "Trace Event Format", Google, 2016; a thread 0 is lost by Perfetto.
    """
    scale = 1e6 / float(facts.figure("clock_hz"))
    steps = steps_by_function(facts)
    operations = {one.number: one for one in facts.tables["operations"] if isinstance(one, rows.Operation)}
    runs = [run for run in facts.tables["runs"] if isinstance(run, rows.Run)]
    events: list[dict[str, Any]] = list(_names(sorted({run.ipu for run in runs})))
    drawn = left_out = 0
    for run in runs:
        lane = "functions" if run.function else run.kind
        events.append(_slice(run.action, lane, run.ipu, run.begin, run.end, scale, {"micro_batch": run.micro_batch}))
        inner = steps.get(run.function, ())
        if drawn + len(inner) > most:
            left_out += len(inner)
            continue
        drawn += len(inner)
        for step in inner:
            begin = run.begin + step.begin
            lane = "transfer" if step.overlaps else step.category
            about = _about(step, operations.get(step.operation))
            events.append(_slice(step.name, lane, run.ipu, begin, begin + step.cycles * step.runs, scale, about))
    notes = {"format": "torchipu.trace", "version": 1, "steps": drawn, "steps_left_out": left_out}
    return {"displayTimeUnit": "ns", "otherData": notes, "traceEvents": events}


def trace_bytes(facts: Facts) -> bytes:
    """Return the trace as a compressed file, the same bytes for the same facts."""
    return gzip.compress(json.dumps(trace_of(facts), separators=(",", ":")).encode(), mtime=0)


def steps_by_function(facts: Facts) -> Mapping[str, Sequence[rows.Step]]:
    """Return the steps of each function in order."""
    found: dict[str, list[rows.Step]] = {}
    for step in facts.tables["steps"]:
        assert isinstance(step, rows.Step)
        found.setdefault(step.function, []).append(step)
    return found


def _names(ipus: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the names of processes and threads."""
    for ipu in ipus:
        yield {"ph": "M", "name": "process_name", "pid": ipu + 1, "tid": 1, "args": {"name": f"ipu{ipu}"}}
        for number, lane in enumerate(LANES, start=1):
            yield {"ph": "M", "name": "thread_name", "pid": ipu + 1, "tid": number, "args": {"name": lane}}


def _slice(
    name: str, lane: str, ipu: int, begin: int, end: int, scale: float, about: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": lane, "pid": ipu + 1, "tid": LANES.index(lane) + 1, "ts": begin * scale,
        "dur": (end - begin) * scale, "args": {"begin": begin, "cycles": end - begin, **about},
    }


def _about(step: rows.Step, operation: rows.Operation | None) -> dict[str, Any]:
    about: dict[str, Any] = {"runs": step.runs}
    if operation is not None:
        about |= {"op": operation.name, "kind": operation.kind, "module": operation.module}
        if operation.file:
            about["source"] = f"{operation.file}:{operation.line}"
    if step.vertices:
        about |= {"codelets": step.codelets, "vertices": step.vertices, "tile balance": step.tile_balance}
    return about
