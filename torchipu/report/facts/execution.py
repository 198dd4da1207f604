"""Functions, their steps and runs, and the ops that they are made of, as rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from torchipu.device.cost import Cost
from torchipu.device.cost.by_tile import TileWork
from torchipu.device.cost.steps import Step, name_of, steps_of
from torchipu.device.cost.timeline import RECOMPUTE, TRANSFER, Span
from torchipu.ir.graph import Op
from torchipu.ir.program import Copy, Executable, Execute, Gather, HostCopy
from torchipu.optable.marks import MARK
from torchipu.report.facts import rows
from torchipu.report.facts.flows import flow_rows
from torchipu.report.facts.patterns import NONE, Patterns
from torchipu.report.facts.work import flops_of
from torchipu.target import Target

ON_THE_CHIP = ("compute", "exchange", "sync")
"""Categories of steps that belong to the op of the compute set that follows."""


@dataclass(slots=True)
class _Spent:
    """What an op takes in an iteration."""

    op: Op
    runs: int = 0
    exchanged_bytes: int = 0
    codelets: dict[str, int] = field(default_factory=dict)
    cycles: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ON_THE_CHIP, 0))


@dataclass(frozen=True, slots=True)
class ExecutionRows:
    """What runs when, as rows of the tables of the same names; ``numbers`` gives those of ops by their ``id``."""

    functions: tuple[rows.Function, ...]
    steps: tuple[rows.Step, ...]
    runs: tuple[rows.Run, ...]
    operations: tuple[rows.Operation, ...]
    flows: tuple[rows.Flow, ...]
    numbers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Around:
    """What the steps of all functions have in common."""

    executable: Executable
    programs: Mapping[int, int]
    work: TileWork
    patterns: Patterns


def execution_rows(
    executable: Executable, cost: Cost, target: Target, programs: Mapping[int, int], work: TileWork, patterns: Patterns,
) -> ExecutionRows:
    """Return what runs when.

    Args:
        executable: The program.
        cost: Its cycles.
        target: The machine.
        programs: Numbers of programs by their ``id``.
        work: Of its compute sets.
        patterns: Takes the cycles by tile.
    """
    around = _Around(executable, programs, work, patterns)
    spent: dict[int, _Spent] = {}
    steps: list[rows.Step] = []
    for name, program in executable.functions.items():
        walked = steps_of(program, target, executable.functions, executable.num_ipus)
        times = cost.runs_by_function.get(name, 0)
        steps += _function_steps(name, list(walked), times, spent, around)
    functions = tuple(
        rows.Function(name, one.cycles, cost.runs_by_function.get(name, 0), one.recompute_cycles)
        for name, one in cost.functions.items()
    )
    numbers = {key: number for number, key in enumerate(spent)}
    named = tuple(step._replace(operation=numbers.get(step.operation, -1)) for step in steps)
    operations = tuple(_operation(number, one) for number, one in enumerate(spent.values()))
    flows = flow_rows([one.op for one in spent.values()], executable.views)
    return ExecutionRows(functions, named, tuple(_runs(cost)), operations, flows, numbers)


def _function_steps(
    function: str, walked: list[Step], times: int, spent: dict[int, _Spent], around: _Around,
) -> Iterator[rows.Step]:
    """Yield the steps of a function, with the ``id`` of the op as its number, and add up what ops spend."""
    begin = 0
    ops = _ops_of(walked)
    counted: set[tuple[int, int]] = set()
    for number, (step, op) in enumerate(zip(walked, ops, strict=True)):
        vertices, codelets, balance, pattern = 0, "", 1.0, NONE
        if isinstance(step.leaf, Execute):
            groups = step.leaf.compute_set.groups
            vertices = sum(len(group.runs.runs) for group in groups)
            codelets = ",".join(dict.fromkeys(group.codelet for group in groups))
            by_tile = around.work.cycles(step.leaf.compute_set)
            balance = float(by_tile.mean() / step.cycles) if step.cycles else 1.0
            pattern = around.patterns.number(by_tile)
        moved = _moved_bytes(step)
        if op is not None and step.category in ON_THE_CHIP:
            one = spent.setdefault(id(op), _Spent(op))
            one.cycles[step.category] += step.cycles * step.runs * times
            one.exchanged_bytes += moved * step.runs * times
            if isinstance(step.leaf, Execute):
                one.codelets |= {
                    group.codelet: around.executable.code_bytes.get(group.codelet, 0)
                    for group in step.leaf.compute_set.groups
                }
                if (id(op), step.runs) not in counted:
                    counted.add((id(op), step.runs))
                    one.runs += max(step.runs, 1) * times
        yield rows.Step(
            function, number, step.category, name_of(step.leaf), 0 if op is None else id(op), begin, step.cycles,
            step.runs, step.overlaps, moved, vertices, codelets, round(balance, 4),
            around.programs[id(step.leaf)], pattern,
        )
        begin += 0 if step.overlaps else step.cycles * step.runs


def _ops_of(walked: list[Step]) -> list[Op | None]:
    """Return the op of each step: that of its compute set, or for what comes before one, of the next."""
    ops: list[Op | None] = []
    following: Op | None = None
    for step in reversed(walked):
        if isinstance(step.leaf, Execute):
            following = step.leaf.compute_set.op
        elif step.category not in ON_THE_CHIP:
            following = None
        ops.append(following)
    return ops[::-1]


def _moved_bytes(step: Step) -> int:
    match step.leaf:
        case Copy(total_bytes=total) | Gather(total_bytes=total):
            return total
        case HostCopy(variable=variable):
            return variable.device_bytes
    return 0


def _operation(number: int, spent: _Spent) -> rows.Operation:
    op, source, place = spent.op, spent.op.source, spent.op.placement
    result = op.outputs[0] if op.outputs else None
    shown = "" if result is None else f"{result.dtype.name.lower()}[{','.join(map(str, result.shape))}]"
    runs = max(1, spent.runs)
    return rows.Operation(
        number, op.kind if result is None else result.name, op.kind, op.target,
        (op.leg if place is None else place.leg).name.lower(), "" if place is None else place.block,
        0 if place is None else place.ipu, 0 if place is None else place.stage, source.module, source.file,
        source.line, source.code, shown, flops_of(op) * runs, spent.runs, sum(spent.cycles.values()),
        spent.cycles["compute"], spent.cycles["exchange"], spent.cycles["sync"], spent.exchanged_bytes,
        sum(spent.codelets.values()), MARK in op.attrs, "estimate" if op.kind == "generic" else "modelled",
        str(op.attrs.get(MARK, "")), json.dumps(source.callers, ensure_ascii=False),
    )


def _runs(cost: Cost) -> Iterator[rows.Run]:
    """Yield the runs of functions, and what moves between IPUs and beside them, by IPU in order of time."""
    number = 0
    for ipu, spans in enumerate(cost.timeline.spans_by_ipu):
        moved = cost.timeline.transfers_by_ipu[ipu] if ipu < len(cost.timeline.transfers_by_ipu) else []
        found = [*_joined(spans), *((span, 0) for span in moved)]
        for span, again in sorted(found, key=lambda pair: pair[0].begin):
            action = span.action.removesuffix(f".{RECOMPUTE}")
            kind = TRANSFER if span.action == TRANSFER else replace(span, action=action).kind
            yield rows.Run(
                number, ipu, span.function, action, -1 if span.micro_batch is None else span.micro_batch, kind,
                span.begin, span.end, again,
            )
            number += 1


def _joined(spans: list[Span]) -> Iterator[tuple[Span, int]]:
    """Yield runs with their cycles of recomputation, which have spans of their own before the rest of the run."""
    again: Span | None = None
    for span in spans:
        if again is not None and (span.function, span.begin) != (again.function, again.end):
            yield again, again.end - again.begin
            again = None
        if span.action.endswith(f".{RECOMPUTE}"):
            again = span
            continue
        begin = span.begin if again is None else again.begin
        yield replace(span, begin=begin), span.begin - begin
        again = None
    if again is not None:
        yield again, again.end - again.begin
