"""Which variables a program uses, writes and reads, and the program over others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from torchipu.ir.program import (
    AllReduce,
    Call,
    ComputeSet,
    Copy,
    Execute,
    Gather,
    HostCopy,
    If,
    OnIpus,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Sync,
    Variable,
    VertexGroup,
    leaves_of,
)


def fields_of(step: Execute) -> Iterator[Variable]:
    """Yield the variables of a compute set's vertices."""
    for group in step.compute_set.groups:
        yield from group.fields.values()


def used_by(program: Program) -> Iterator[Variable]:
    """Yield the variables that a program reads or writes, each as often as it does."""
    for step in leaves_of(program):
        match step:
            case Execute():
                yield from fields_of(step)
            case Copy(src=src, dst=dst):
                yield from (src, dst)
            case HostCopy(variable=variable):
                yield variable
            case AllReduce(variables=variables) | Gather(variables=variables):
                yield from variables
    if isinstance(program, (If, RepeatWhile)):
        yield program.condition


def written_by(program: Program) -> Iterator[Variable]:
    """Yield what vertices, copies on the same IPU and sums write."""
    for step in leaves_of(program):
        match step:
            case Execute(compute_set=compute_set):
                for group in compute_set.groups:
                    yield from (v for name, v in group.fields.items() if name.rstrip("0123456789") == "out")
            case Copy(dst=dst):
                yield dst
            case AllReduce(variables=variables):
                yield from variables


def is_read(program: Program, variable: Variable) -> bool:
    """Whether a step needs what a variable held before."""
    for step in leaves_of(program):
        match step:
            case Execute(compute_set=compute_set):
                names = {n for group in compute_set.groups for n, v in group.fields.items() if v is variable}
                if any(name.rstrip("0123456789") != "out" for name in names):
                    return True
            case Copy(dst=dst, src=src):
                if dst is not variable or src is variable:
                    return True
            case _:
                return True
    return False


def over_others(program: Program, changes: Mapping[Variable, Variable]) -> Program:
    """Return a program over other variables."""
    def new(variable: Variable) -> Variable:
        return changes.get(variable, variable)

    def all_new(parts: Iterable[Program]) -> tuple[Program, ...]:
        return tuple(over_others(part, changes) for part in parts)

    match program:
        case Sequence(body=body):
            return Sequence(all_new(body))
        case OnIpus(bodies=bodies):
            return OnIpus(all_new(bodies))
        case Repeat(body=part):
            return replace(program, body=over_others(part, changes))
        case If():
            return replace(
                program, condition=new(program.condition), then=over_others(program.then, changes),
                otherwise=over_others(program.otherwise, changes),
            )
        case RepeatWhile():
            return replace(
                program, condition=new(program.condition), test=over_others(program.test, changes),
                body=over_others(program.body, changes),
            )
        case Execute(compute_set=compute_set):
            if not any(field in changes for field in fields_of(program)):
                return program
            return Execute(_compute_set(compute_set, new))
        case Copy():
            return replace(program, src=new(program.src), dst=new(program.dst))
        case HostCopy():
            return replace(program, variable=new(program.variable))
        case AllReduce() | Gather():
            return replace(program, variables=tuple(map(new, program.variables)))
        case Call() | Sync():
            return program


def _compute_set(compute_set: ComputeSet, new: Callable[[Variable], Variable]) -> ComputeSet:
    groups: list[VertexGroup] = [
        replace(group, fields={name: new(variable) for name, variable in group.fields.items()})
        for group in compute_set.groups
    ]
    return replace(compute_set, groups=tuple(groups))


def sync_before(body: list[Program]) -> list[Program]:
    """Take from the end of a body what belongs to the compute set that follows: its sync and its exchange."""
    sync = [body.pop()] if body and isinstance(body[-1], (Sync, Gather)) else []
    if sync and isinstance(sync[0], Gather) and body and isinstance(body[-1], Sync):
        return [body.pop(), *sync]
    return sync


def leg_of(function: str) -> str:
    """Return the letter of a function's leg: F of ``12F.recompute``."""
    return function.lstrip("0123456789")[:1]
