"""Lays the legs of the stages and micro-batches out over pipeline cycles and IPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchipu.errors import ScheduleError
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.text import format_schedule
from torchipu.ir.types import Leg

# Within a cell, the forward comes first: the last stage's backward needs it in the same cycle.
Timed = tuple[int, Action]


def make_schedule(
    num_stages: int, ipu_by_stage: Sequence[int], micro_batches: int, execution: str, training: bool,
) -> Schedule:
    """Return the schedule of one weight update, or of one inference run.

    Args:
        num_stages: Pipeline stages, at least 1.
        ipu_by_stage: IPU of each stage; the grid has a column for every IPU up to the largest.
        micro_batches: Micro-batches of the run: gradient accumulation in training, device iterations in inference.
        execution: ``pipelined`` or ``sharded``.
        training: Whether there are a backward and an update leg.

    Returns:
        Steps with, for each IPU, the actions that it runs one after another.

    Raises:
        ScheduleError: There are fewer micro-batches than a full pipeline holds.

    Source: PopART's pipeline, ipu_hardware.md section 4.1: stage ``s`` of ``S`` runs the forward of micro-batch
    ``m`` in cycle ``m + s`` and its backward in cycle ``m + 2(S-1) - s``.
    """
    if execution == "sharded":
        return Schedule(_grid(enumerate(_sharded_actions(num_stages, micro_batches, training)), ipu_by_stage))
    ramp = (2 if training else 1) * (num_stages - 1)
    grid = _grid(_pipelined_actions(num_stages, micro_batches, training), ipu_by_stage)
    schedule = Schedule(grid, fill=ramp, flush=ramp)
    if micro_batches <= ramp:
        raise _too_short(schedule, num_stages, micro_batches, training)
    return schedule


def _pipelined_actions(num_stages: int, micro_batches: int, training: bool) -> list[Timed]:
    """List the actions with their cycles, forwards first; all updates share the cycle after the last."""
    forward = [(m + stage, Action(stage, Leg.FORWARD, m)) for stage in range(num_stages) for m in range(micro_batches)]
    if not training:
        return forward
    ramp = 2 * (num_stages - 1)
    backward = [
        (m + ramp - stage, Action(stage, Leg.BACKWARD, m))
        for stage in reversed(range(num_stages)) for m in range(micro_batches)
    ]
    update = [(micro_batches + ramp, Action(stage, Leg.UPDATE, None)) for stage in range(num_stages)]
    return [*forward, *backward, *update]


def _sharded_actions(num_stages: int, micro_batches: int, training: bool) -> list[Action]:
    """List the actions one after another: every micro-batch through all stages and back, then the updates."""
    actions = []
    for m in range(micro_batches):
        actions += [Action(stage, Leg.FORWARD, m) for stage in range(num_stages)]
        if training:
            actions += [Action(stage, Leg.BACKWARD, m) for stage in reversed(range(num_stages))]
    if training:
        actions += [Action(stage, Leg.UPDATE, None) for stage in range(num_stages)]
    return actions


def _grid(timed: Iterable[Timed], ipu_by_stage: Sequence[int]) -> tuple[tuple[tuple[Action, ...], ...], ...]:
    """Sort actions into cells, one row a cycle and one column an IPU, keeping their order within a cell."""
    actions = list(timed)
    rows = max((cycle for cycle, _ in actions), default=-1) + 1
    cells: list[list[list[Action]]] = [[[] for _ in range(max(ipu_by_stage) + 1)] for _ in range(rows)]
    for cycle, action in actions:
        cells[cycle][ipu_by_stage[action.stage]].append(action)
    return tuple(tuple(tuple(cell) for cell in row) for row in cells)


def _too_short(schedule: Schedule, num_stages: int, micro_batches: int, training: bool) -> ScheduleError:
    """Make the error of a pipeline that drains before it is full; the arrow shows the cycle."""
    option = "gradient_accumulation" if training else "device_iterations"
    least = schedule.fill + 1
    note = "0F has no micro-batch left, the pipeline is not full yet"
    return ScheduleError(
        f"{option}={micro_batches} is shorter than the pipeline: {num_stages} stages need {option} of at least {least}",
        detail=format_schedule(schedule, arrow_at=micro_batches, note=note),
        remedy=f"raise {option} to {least} or more, use fewer stages, or set execution='sharded'",
    )
