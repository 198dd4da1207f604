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
COMPRESSION = 3
"""Of gzip. A trace repeats itself: of 300,000 steps, level 6 takes twice as long and is a fifth smaller."""
Pieces = Sequence[tuple[str, int, str, str]]
"""Of each step of a function: what stands before its time, when it begins in its function, what follows its time, and
what follows the cycle of its begin."""


def trace_of(facts: Facts, most: int = MOST_SLICES) -> dict[str, Any]:
    """Return the trace as data.

    Each IPU is a process, each lane a thread, numbered from 1. Times are in microseconds; ``args`` hold cycles.

    Args:
        facts: Of the program.
        most: Steps that are drawn.

    Source of the format: "Trace Event Format", Google, 2016; a thread 0 is lost by Perfetto.
    """
    found: dict[str, Any] = json.loads(trace_text(facts, most))
    return found


def trace_text(facts: Facts, most: int = MOST_SLICES) -> str:
    """Return the trace as JSON.

    The text of a step is made once for its function and IPU: each run fills in when it begins.

    Args:
        facts: Of the program.
        most: Steps that are drawn.
    """
    scale = 1e6 / float(facts.figure("clock_hz"))
    steps = steps_by_function(facts)
    operations = {one.number: one for one in facts.tables["operations"] if isinstance(one, rows.Operation)}
    runs = [run for run in facts.tables["runs"] if isinstance(run, rows.Run)]
    events = [_json(name) for name in _names(sorted({run.ipu for run in runs}))]
    pieces: dict[tuple[str, int], Pieces] = {}
    drawn = left_out = 0
    for run in runs:
        events.append(_json(_slice_of_run(run, scale)))
        inner = steps.get(run.function, ())
        if drawn + len(inner) > most:
            left_out += len(inner)
            continue
        drawn += len(inner)
        key = (run.function, run.ipu)
        if key not in pieces:
            pieces[key] = [_pieces(step, run.ipu, scale, operations.get(step.operation)) for step in inner]
        at = run.begin
        events += [
            f"{head}{(at + begin) * scale!r}{middle}{at + begin}{tail}" for head, begin, middle, tail in pieces[key]
        ]
    notes = {"format": "torchipu.trace", "version": 1, "steps": drawn, "steps_left_out": left_out}
    return f'{{"displayTimeUnit":"ns","otherData":{_json(notes)},"traceEvents":[{",".join(events)}]}}'


def trace_bytes(facts: Facts) -> bytes:
    """Return the trace as a compressed file, the same bytes for the same facts."""
    return gzip.compress(trace_text(facts).encode(), COMPRESSION, mtime=0)


def steps_by_function(facts: Facts) -> Mapping[str, Sequence[rows.Step]]:
    """Return the steps of each function in order."""
    found: dict[str, list[rows.Step]] = {}
    for step in facts.tables["steps"]:
        assert isinstance(step, rows.Step)
        found.setdefault(step.function, []).append(step)
    return found


_json = json.JSONEncoder(separators=(",", ":")).encode  # made once: a trace has a text for each step of a function


def _names(ipus: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the names of processes and threads."""
    for ipu in ipus:
        yield {"ph": "M", "name": "process_name", "pid": ipu + 1, "tid": 1, "args": {"name": f"ipu{ipu}"}}
        for number, lane in enumerate(LANES, start=1):
            yield {"ph": "M", "name": "thread_name", "pid": ipu + 1, "tid": number, "args": {"name": lane}}


def _slice_of_run(run: rows.Run, scale: float) -> dict[str, Any]:
    lane, cycles = "functions" if run.function else run.kind, run.end - run.begin
    return {
        "ph": "X", "name": run.action, "cat": lane, "pid": run.ipu + 1, "tid": LANES.index(lane) + 1,
        "ts": run.begin * scale, "dur": cycles * scale,
        "args": {"begin": run.begin, "cycles": cycles, "micro_batch": run.micro_batch},
    }


def _pieces(
    step: rows.Step, ipu: int, scale: float, operation: rows.Operation | None,
) -> tuple[str, int, str, str]:
    """Return the slice of a step on an IPU, cut where the time and the cycle of its begin stand."""
    lane, cycles = "transfer" if step.overlaps else step.category, step.cycles * step.runs
    head = {"ph": "X", "name": step.name, "cat": lane, "pid": ipu + 1, "tid": LANES.index(lane) + 1}
    rest = {"cycles": cycles, **_about(step, operation)}
    return (
        f'{_json(head)[:-1]},"ts":', step.begin, f',"dur":{_json(cycles * scale)},"args":{{"begin":',
        f",{_json(rest)[1:]}}}",
    )


def _about(step: rows.Step, operation: rows.Operation | None) -> dict[str, Any]:
    about: dict[str, Any] = {"runs": step.runs}
    if operation is not None:
        about |= {"op": operation.name, "kind": operation.kind, "module": operation.module}
        if operation.file:
            about["source"] = f"{operation.file}:{operation.line}"
    if step.vertices:
        about |= {"codelets": step.codelets, "vertices": step.vertices, "tile balance": step.tile_balance}
    return about
