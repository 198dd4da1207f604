"""The stages of a program as rows: what each takes, what it keeps for its backward, and which all others wait for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from torchipu.device.cost import Cost
from torchipu.ir.graph import Op
from torchipu.ir.program import Executable, Execute, leaves_of
from torchipu.ir.types import Leg
from torchipu.report.facts import rows


def stage_rows(
    executable: Executable, cost: Cost, variables: Sequence[rows.Variable], operations: Sequence[rows.Operation],
) -> tuple[rows.StageRow, ...]:
    """Return the stages in order.

    Args:
        executable: The program.
        cost: Its cycles.
        variables: Of the program; those with several copies are stashes.
        operations: That make them.
    """
    places = _stages(executable)
    stages = {one.number: one.stage for one in operations}
    stashes: dict[int, list[rows.Variable]] = {}
    for variable in variables:
        if variable.depth > 1:
            at = [number for number, (ipu, _) in places.items() if ipu == variable.ipu]
            stage = stages.get(variable.operation, at[0] if at else 0)
            stashes.setdefault(stage if stage in at else (at[0] if at else 0), []).append(variable)
    times = {number: _cycles(cost, number) for number in places}
    busy: dict[int, int] = {}
    for number, (ipu, _) in places.items():
        busy[ipu] = busy.get(ipu, 0) + sum(times[number][:2])
    critical = max(
        places, key=lambda number: (busy[places[number][0]], sum(times[number][:2]), -number), default=-1,
    )
    return tuple(
        rows.StageRow(
            number, ipu, ",".join(blocks), *times[number], len(stashes.get(number, ())),
            sum(one.bytes for one in stashes.get(number, ())),
            max((one.depth for one in stashes.get(number, ())), default=0), number == critical,
        ) for number, (ipu, blocks) in places.items()
    )


def pipeline_facts(cost: Cost, stages: Sequence[rows.StageRow]) -> Iterator[rows.Fact]:
    """Yield the share of the time in which IPUs wait, the critical stage, and the bytes of stashes."""
    spent = [sum(cycles.values()) for cycles in cost.cycles_by_category_by_ipu]
    idle = sum(cycles.get("idle", 0) for cycles in cost.cycles_by_category_by_ipu)
    share = idle / sum(spent) if sum(spent) else 0.0
    yield rows.Fact("pipeline_bubble", json.dumps(share), "", "modelled")
    critical = next((one.number for one in stages if one.is_critical), 0)
    yield rows.Fact("critical_stage", json.dumps(critical), "", "modelled")
    yield rows.Fact("stash_bytes", json.dumps(sum(one.stash_bytes for one in stages)), "B", "modelled")


def _stages(executable: Executable) -> dict[int, tuple[int, list[str]]]:
    """Return the IPU and the blocks of each stage, in order."""
    found: dict[int, tuple[int, list[str]]] = {}
    for op in _ops(executable):
        if op.placement is not None and op.leg is not Leg.UPDATE:
            _, blocks = found.setdefault(op.placement.stage, (op.placement.ipu, []))
            if op.placement.block not in blocks:
                blocks.append(op.placement.block)
    return dict(sorted(found.items()))


def _ops(executable: Executable) -> Iterator[Op]:
    for program in executable.functions.values():
        for leaf in leaves_of(program):
            if isinstance(leaf, Execute):
                yield leaf.compute_set.op


def _cycles(cost: Cost, stage: int) -> tuple[int, int, int]:
    """Return the cycles of a micro-batch's forward and backward, and those of the latter that compute again."""
    forward, backward = (cost.functions.get(f"{stage}{leg}") for leg in "FB")
    return (
        0 if forward is None else forward.cycles, 0 if backward is None else backward.cycles,
        0 if backward is None else backward.recompute_cycles,
    )
