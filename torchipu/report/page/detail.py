"""The steps of a function at several levels of detail, so that a picture of many runs draws only what can be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.trace import steps_by_function

FACTOR = 8
"""From a level to the next coarser one."""
FEWEST = 8
"""Slices of a function below which a coarser level is of no use."""
Slice = tuple[int, int, int]
"""Begin, end, and cycles in between in which something runs."""


def detail_of(facts: Facts) -> dict[str, list[dict[str, Any]]]:
    """Return the levels of each function that runs, the finest first.

    Each has a ``resolution`` in cycles, below which gaps and slices are joined, and for each lane ``begin``, ``end``
    and ``busy`` of its slices.

    Args:
        facts: Of the program.
    """
    runs = {run.function for run in facts.tables["runs"] if isinstance(run, rows.Run)}
    return {name: _levels(steps) for name, steps in steps_by_function(facts).items() if name in runs}


def _levels(steps: Sequence[rows.Step]) -> list[dict[str, Any]]:
    lanes: dict[str, list[Slice]] = {}
    for step in steps:
        end = step.begin + step.cycles * step.runs
        if end > step.begin:
            lane = "transfer" if step.overlaps else step.category
            lanes.setdefault(lane, []).append((step.begin, end, end - step.begin))
    resolution, levels = 1, [_level(1, lanes)]
    longest = max((slices[-1][1] for slices in lanes.values()), default=0)
    while sum(map(len, lanes.values())) > FEWEST and resolution < longest:
        resolution *= FACTOR
        joined = {lane: _joined(slices, resolution) for lane, slices in lanes.items()}
        if sum(map(len, joined.values())) < sum(map(len, lanes.values())):
            levels.append(_level(resolution, joined))
        lanes = joined
    return levels


def _joined(slices: Sequence[Slice], resolution: int) -> list[Slice]:
    """Join slices of a lane that begin in the same stretch of so many cycles as the one before."""
    found: list[Slice] = []
    for begin, end, busy in slices:
        if found and begin // resolution == found[-1][0] // resolution:
            first, last, before = found[-1]
            found[-1] = (first, max(last, end), before + busy)
        else:
            found.append((begin, end, busy))
    return found


def _level(resolution: int, lanes: Mapping[str, Sequence[Slice]]) -> dict[str, Any]:
    return {
        "resolution": resolution,
        "lanes": {
            lane: dict(zip(("begin", "end", "busy"), map(list, zip(*slices, strict=True)), strict=True))
            for lane, slices in lanes.items()
        },
    }
