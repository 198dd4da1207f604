"""The tree of programs, what they read and write, and their vertices, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from torchipu.device.cost.by_tile import TileWork
from torchipu.device.cost.steps import name_of
from torchipu.ir.program import (
    AllReduce,
    Call,
    ComputeSet,
    Copy,
    Executable,
    Execute,
    Gather,
    HostCopy,
    If,
    OnIpus,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Variable,
    parts_of,
)
from torchipu.report.facts import rows
from torchipu.report.facts.patterns import Patterns

TYPES: Mapping[type[Program], str] = {
    Execute: "OnTileExecute", Copy: "DoExchange", Gather: "DoExchange", AllReduce: "GlobalExchange",
    HostCopy: "StreamCopyMid", Call: "Call", Sequence: "Sequence", Repeat: "Repeat", RepeatWhile: "RepeatWhile",
    If: "If", OnIpus: "Sequence",
}
"""Poplar's names; what has none here is a ``Sync``."""


@dataclass(frozen=True, slots=True)
class ProgramRows:
    """The tree, as rows of the tables of the same names; ``numbers`` gives those of programs by their ``id``."""

    programs: tuple[rows.Program, ...]
    program_variables: tuple[rows.ProgramVariable, ...]
    vertices: tuple[rows.Vertices, ...]
    codelets: tuple[rows.Codelet, ...]
    numbers: Mapping[int, int]


@dataclass(slots=True)
class _Tree:
    """What was walked so far."""

    work: TileWork
    patterns: Patterns
    variables: Mapping[str, int]
    programs: list[rows.Program] = field(default_factory=list)
    used: list[rows.ProgramVariable] = field(default_factory=list)
    vertices: list[rows.Vertices] = field(default_factory=list)
    codelets: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)

    def walk(self, program: Program, parent: int, name: str = "") -> None:
        """Add a program and those that it holds."""
        number = len(self.programs)
        self.numbers.setdefault(id(program), number)
        self.programs.append(rows.Program(
            number, parent, _type(program), name or _name(program),
            program.function if isinstance(program, Call) else "", program.count if isinstance(program, Repeat) else 1,
            _ipu(program), isinstance(program, HostCopy) and program.to_device,
        ))
        held = dict.fromkeys(self.variables[one.name] for one in _variables(program) if one.name in self.variables)
        self.used += [rows.ProgramVariable(number, one) for one in held]
        if isinstance(program, Execute):
            self._add_vertices(number, program.compute_set)
        for part in parts_of(program):
            self.walk(part, number)

    def _add_vertices(self, number: int, compute_set: ComputeSet) -> None:
        for group in compute_set.groups:
            by_tile = self.work.vertices(group.runs)
            self.vertices.append(rows.Vertices(
                number, group.codelet, int(by_tile.sum()), len(group.fields), group.cycles,
                self.patterns.number(by_tile),
            ))
            key = (group.codelet, compute_set.ipu)
            self.codelets[key] = self.codelets.get(key, 0) + by_tile


def program_rows(executable: Executable, work: TileWork, patterns: Patterns) -> ProgramRows:
    """Return the entry points and functions with all that they hold.

    Args:
        executable: The program.
        work: Of its compute sets.
        patterns: Takes the vertices by tile.
    """
    variables = {variable.name: number for number, variable in enumerate(executable.variables)}
    tree = _Tree(work, patterns, variables)
    for name, program in {**executable.programs, **executable.functions}.items():
        tree.walk(program, -1, name)
    codelets = tuple(
        rows.Codelet(name, ipu, executable.code_bytes.get(name, 0), int(by_tile.sum()), patterns.number(by_tile))
        for (name, ipu), by_tile in sorted(tree.codelets.items(), key=lambda item: item[0])
    )
    return ProgramRows(tuple(tree.programs), tuple(tree.used), tuple(tree.vertices), codelets, tree.numbers)


def _type(program: Program) -> str:
    if isinstance(program, Copy) and program.src.ipu != program.dst.ipu:
        return "GlobalExchange"
    return TYPES.get(type(program), "Sync")


def _name(program: Program) -> str:
    match program:
        case Call(function=function):
            return function
        case OnIpus():
            return "on all IPUs at the same time"
    return name_of(program)


def _ipu(program: Program) -> int:
    if isinstance(program, Execute):
        return program.compute_set.ipu
    ipus = {variable.ipu for variable in _variables(program)}
    return ipus.pop() if len(ipus) == 1 else -1


def _variables(program: Program) -> Iterator[Variable]:
    match program:
        case Execute(compute_set=compute_set):
            for group in compute_set.groups:
                yield from group.fields.values()
        case Copy(src=src, dst=dst):
            yield from (src, dst)
        case Gather(variables=variables) | AllReduce(variables=variables):
            yield from variables
        case HostCopy(variable=variable):
            yield variable
        case If(condition=condition) | RepeatWhile(condition=condition):
            yield condition
