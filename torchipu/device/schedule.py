"""Lays the legs of the stages and micro-batches out over pipeline cycles and IPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchipu.errors import ScheduleError
from torchipu.ir.graph import Graph
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.text import format_schedule
from torchipu.ir.types import Leg
from torchipu.options import Options

# Within a cell, the forward comes first: the last stage's backward needs it in the same cycle.
Timed = tuple[int, Action]


def schedule_of(graph: Graph, options: Options, micro_batches: int) -> Schedule:
    """Build the schedule of a placed graph.

    A graph that holds only one leg (the Dynamo door compiles forward and backward apart) runs its stages one
    after another.
    """
    ipus = ipus_of_stages(graph)
    forward, backward = graph.has_leg(Leg.FORWARD), graph.has_leg(Leg.BACKWARD)
    if backward and not forward:
        return _backward_only(ipus)
    execution = options.execution
    if not _is_phased(options) and (len(ipus) == 1 or micro_batches == 1) and not graph.has_leg(Leg.UPDATE):
        execution = "sharded"  # there is nothing to overlap
    return make_schedule(
        len(ipus), ipus, micro_batches, execution, backward, separate_backward=options.separate_backward_phase,
    )


def ipus_of_stages(graph: Graph) -> tuple[int, ...]:
    """Return the IPU of each stage of a placed graph; 0 for a stage without ops."""
    ipu_by_stage: dict[int, int] = {}
    for op in graph.ops:
        if op.placement is not None and op.leg is not Leg.UPDATE:
            ipu_by_stage.setdefault(op.placement.stage, op.placement.ipu)
    return tuple(ipu_by_stage.get(stage, 0) for stage in range(max(ipu_by_stage, default=0) + 1))


def _is_phased(options: Options) -> bool:
    return options.execution.endswith("_phased")


def _backward_only(ipu_by_stage: tuple[int, ...]) -> Schedule:
    rows = []
    for stage, ipu in reversed(list(enumerate(ipu_by_stage))):
        row: list[tuple[Action, ...]] = [()] * (max(ipu_by_stage) + 1)
        row[ipu] = (Action(stage, Leg.BACKWARD, 0),)
        rows.append(tuple(row))
    return Schedule(tuple(rows))


def make_schedule(
    num_stages: int, ipu_by_stage: Sequence[int], micro_batches: int, execution: str, training: bool, *,
    separate_backward: bool = False,
) -> Schedule:
    """Return the schedule of one weight update, or of one inference run.

    Args:
        num_stages: Pipeline stages, at least 1.
        ipu_by_stage: IPU of each stage; the grid has a column for every IPU up to the largest.
        micro_batches: Micro-batches of the run: gradient accumulation in training, device iterations in inference.
        execution: ``pipelined``: PopART's pipeline. ``sharded``: one stage after another. ``serial_phased`` and
            ``parallel_phased``: one phase after another, each stage being one. ``1f1b``: a stage runs a backward as
            soon as it can and holds no more micro-batches than there are stages from it to the last.
            ``interleaved``: the same where every IPU has several stages.
        training: Whether there are a backward and an update leg.
        separate_backward: With phases: the backward of the last stage is a phase of its own.

    Returns:
        Steps with, for each IPU, the actions that it runs one after another.

    Raises:
        ScheduleError: There are fewer micro-batches than a full pipeline holds, or, with parallel phases, an even
            phase is on an odd IPU or an odd one on an even IPU.

    Source: PopART's pipeline, ipu_hardware.md section 4.1: stage ``s`` of ``S`` runs the forward of micro-batch
    ``m`` in cycle ``m + s`` and its backward in cycle ``m + 2(S-1) - s``.
    """
    if execution == "sharded":
        return Schedule(_grid(enumerate(_sharded_actions(num_stages, micro_batches, training)), ipu_by_stage))
    if execution in ("serial_phased", "parallel_phased"):
        timed = _phased_actions(num_stages, micro_batches, training, separate_backward)
        schedule = Schedule(_grid(timed, ipu_by_stage))
        if execution == "parallel_phased":
            _check_parity(schedule, ipu_by_stage)
        return schedule
    if execution in ("1f1b", "interleaved"):
        grid = _grid(_eager_actions(num_stages, ipu_by_stage, micro_batches, training), ipu_by_stage)
        return Schedule(grid, fill=_partly_idle(grid), flush=_partly_idle(grid[:-1][::-1] if training else grid[::-1]))
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


def _phased_actions(num_stages: int, micro_batches: int, training: bool, separate_backward: bool) -> list[Timed]:
    """List the actions with their phases: forwards up to the last stage, which turns round, and back; then updates."""
    timed, phase = [], 0
    for m in range(micro_batches):
        for stage in range(num_stages):
            timed.append((phase, Action(stage, Leg.FORWARD, m)))
            phase += 1
        if training:
            # The last forward and the first backward share a phase unless told otherwise.
            phase -= 0 if separate_backward else 1
            for stage in reversed(range(num_stages)):
                timed.append((phase, Action(stage, Leg.BACKWARD, m)))
                phase += 1
    return timed + ([(phase, Action(stage, Leg.UPDATE, None)) for stage in range(num_stages)] if training else [])


def _check_parity(schedule: Schedule, ipu_by_stage: Sequence[int]) -> None:
    """Refuse a phase on the wrong half of the IPUs: while one half computes a phase, the other loads the next."""
    for phase, ipu in enumerate(ipu_by_stage):
        if phase % 2 != ipu % 2:
            halves = ("an even phase", "an even IPU") if phase % 2 == 0 else ("an odd phase", "an odd IPU")
            raise ScheduleError(
                f"phase {phase} is on ipu {ipu}, but in parallel phased execution {halves[0]} needs {halves[1]}",
                detail=format_schedule(schedule, arrow_at=phase, note=f"phase {phase} on ipu {ipu}"),
                remedy="give the blocks of even phases even ipu_ids and those of odd phases odd ones, or set "
                "execution='serial_phased'",
            )


# --------------------------------------------------------------------------- one action an IPU and cycle
def _eager_actions(
    num_stages: int, ipu_by_stage: Sequence[int], micro_batches: int, training: bool,
) -> list[Timed]:
    """List the actions in the order in which IPUs take them up, each one a cycle and backwards first.

    An IPU holds back forwards once it has as many micro-batches in flight as a pipeline needs: with one stage, as many
    as there are stages from it to the last; with several, the count of Narayanan et al., "Efficient large-scale
    language model training on GPU clusters using Megatron-LM", section 2.2.
    """
    stages_on = {ipu: [s for s in range(num_stages) if ipu_by_stage[s] == ipu] for ipu in set(ipu_by_stage)}
    ring, rank = len(stages_on), {ipu: rank for rank, ipu in enumerate(sorted(stages_on, key=stages_on.__getitem__))}

    def limit(ipu: int) -> int:
        chunks = len(stages_on[ipu])
        return num_stages - stages_on[ipu][0] if chunks == 1 else 2 * (ring - rank[ipu] - 1) + (chunks - 1) * ring + 1

    def order(action: Action) -> tuple[int, int, int]:
        """Forwards in groups of as many micro-batches as there are IPUs, each group through all stages of the IPU."""
        m = action.micro_batch or 0
        return m // ring, action.stage if action.leg is Leg.FORWARD else num_stages - action.stage, m

    done: dict[Action, int] = {}
    todo = {
        ipu: [Action(s, leg, m) for s in stages for leg in ([Leg.BACKWARD] if training else []) + [Leg.FORWARD]
              for m in range(micro_batches)]
        for ipu, stages in stages_on.items()
    }
    in_flight = dict.fromkeys(stages_on, 0)
    cycle = 0
    while any(todo.values()):
        chosen = {}
        for is_patient in (True, False):
            for ipu, actions in todo.items():
                ready = sorted((a for a in actions if _is_ready(a, num_stages, done, cycle)), key=order)
                backward = [a for a in ready if a.leg is Leg.BACKWARD]
                waits = is_patient and training and in_flight[ipu] >= limit(ipu)
                pick = next(iter(backward or ([] if waits else ready)), None)
                if pick is not None:
                    chosen[ipu] = pick
            if chosen:  # else no IPU can go on within its limit
                break
        for ipu, action in chosen.items():
            todo[ipu].remove(action)
            done[action] = cycle
            in_flight[ipu] += 1 if action.leg is Leg.FORWARD else -1
        cycle += 1
    updates = [(cycle, Action(stage, Leg.UPDATE, None)) for stage in range(num_stages)] if training else []
    return [(when, action) for action, when in done.items()] + updates


def _is_ready(action: Action, num_stages: int, done: dict[Action, int], cycle: int) -> bool:
    """Whether all that an action reads was made in an earlier cycle."""
    stage, m = action.stage, action.micro_batch
    if action.leg is Leg.FORWARD:
        needed = [Action(stage - 1, Leg.FORWARD, m)] if stage else []
    else:
        needed = [Action(stage, Leg.FORWARD, m)]
        needed += [Action(stage + 1, Leg.BACKWARD, m)] if stage + 1 < num_stages else []
    return all(done.get(one, cycle) < cycle for one in needed)


def _partly_idle(rows: Sequence[Sequence[Sequence[Action]]]) -> int:
    """Return how many rows at the beginning leave some IPU idle."""
    return next((number for number, row in enumerate(rows) if all(row)), len(rows))


# --------------------------------------------------------------------------- one after another
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
