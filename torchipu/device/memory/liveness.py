"""Which variables hold a value when, over the order in which functions first run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torchipu.device.memory.in_place import operands_below
from torchipu.ir.graph import Op
from torchipu.ir.program import (
    AllReduce,
    Call,
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
    VertexGroup,
    leaves_of,
    parts_of,
)
from torchipu.ir.types import Role

NOTHING = Sequence(())
class Exchanged(NamedTuple):
    """An exchange as far as its code depends on it.

    Attributes:
        ipu: Whose tiles exchange.
        moved_bytes: In all.
        busiest_bytes: That the busiest tile receives.
        fragments: In which it does.
        number: Which exchange it is, where those that are alike do not share their code.
    """

    ipu: int
    moved_bytes: int
    busiest_bytes: int
    fragments: int
    number: int = 0


@dataclass(slots=True)
class Lifetime:
    """First and last superstep at which a variable holds a value; ``always`` from load to the end.

    ``over`` is the operand on whose bytes a result lies from the first compute set of its op on, when that operand's
    own life ends.
    """

    variable: Variable
    begin: int
    end: int
    always: bool
    over: Variable | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """A superstep that needs temporary memory."""

    time: int
    ipu: int
    group: VertexGroup
    label: str


@dataclass(slots=True)
class Trace:
    """What happens in one run of each function, in the order in which the program first reaches them.

    Attributes:
        first: The superstep that first uses a variable.
        last: The one that last does.
        fed: Variables that other IPUs or the host write while the IPU computes.
        interleaved: Results that lie in interleaved memory: the matrix unit writes them at once.
        moments: Supersteps of vertices.
        spans: First and last superstep of each op that runs by itself.
        exchanges: What is sent, by exchange.
        loops: First and last superstep of each loop, inner ones before those around.
        functions: The same of each function.
        off_chip: Supersteps that use what lies in Streaming Memory.
        time: The last superstep so far.
    """

    first: dict[Variable, int] = field(default_factory=dict)
    last: dict[Variable, int] = field(default_factory=dict)
    fed: set[Variable] = field(default_factory=set)
    interleaved: set[Variable] = field(default_factory=set)
    moments: list[Moment] = field(default_factory=list)
    spans: dict[Op, tuple[VertexGroup, int, int]] = field(default_factory=dict)
    exchanges: dict[Exchanged, tuple[Variable, ...]] = field(default_factory=dict)
    loops: list[tuple[int, int]] = field(default_factory=list)
    functions: dict[str, tuple[int, int]] = field(default_factory=dict)
    off_chip: dict[Variable, list[int]] = field(default_factory=dict)
    time: int = 0

    def touch(self, variables: Iterable[Variable]) -> None:
        """Note that variables are in use now."""
        for variable in variables:
            self.first.setdefault(variable, self.time)
            self.last[variable] = self.time
            if variable.off_chip:
                self.off_chip.setdefault(variable, []).append(self.time)


class Liveness:
    """Which variables hold a value when.

    Args:
        executable: The program.

    Attributes:
        trace: Supersteps, and who uses what in them.
        lifetimes: Of all variables.
    """

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.trace = Trace()
        for program in executable.programs.values():
            for function in _first_calls(program, executable):
                begin = self.trace.time + 1
                self._follow(executable.functions[function])
                self.trace.functions[function] = (begin, self.trace.time)
            self._hold_until_sent(program)
        lifetimes = [life for variable in executable.variables for life in self._lifetimes(variable)]
        self.lifetimes = self._overlaid(lifetimes)

    def source_of(self, name: str) -> str:
        """Return the line of the model that makes a variable, or that first reads it; empty where there is none."""
        for moment in self.trace.moments:
            source = str(moment.group.op.source)
            if source and any(variable.name == name for variable in moment.group.fields.values()):
                return source
        return ""

    def _follow(self, program: Program) -> None:
        """Walk a function's body, one moment for each step."""
        trace = self.trace
        match program:
            case Sequence(body=body):
                for part in body:
                    self._follow(part)
            case Repeat() | RepeatWhile():
                begin = trace.time + 1
                for part in parts_of(program):
                    self._follow(part)
                if isinstance(program, RepeatWhile):
                    trace.touch((program.condition,))
                trace.loops.append((begin, trace.time))
            case If(condition=condition):
                trace.touch((condition,))
                for part in parts_of(program):
                    self._follow(part)
            case Execute(compute_set=compute_set):
                trace.time += 1
                if len(compute_set.groups) == 1:
                    (alone,) = compute_set.groups
                    begin = trace.spans.get(alone.op, (alone, trace.time, 0))[1]
                    trace.spans[alone.op] = alone, begin, trace.time
                for group in compute_set.groups:
                    trace.touch(group.fields.values())
                    trace.moments.append(Moment(trace.time, compute_set.ipu, group, compute_set.name))
                    if group.writes_interleaved and not group.partial_bytes:
                        trace.interleaved.update(_results(group))
            case Copy(src=src, dst=dst, total_bytes=total, max_tile_bytes=largest, fragments=fragments):
                trace.time += 1
                trace.touch((src, dst))
                self._exchange(Exchanged(dst.ipu, total, largest, fragments), (src,))
                if src.ipu != dst.ipu:
                    trace.fed.add(dst)
            case Gather(variables=variables, total_bytes=total, max_tile_bytes=largest, fragments=fragments):
                trace.time += 1
                trace.touch(variables)
                self._exchange(Exchanged(variables[0].ipu, total, largest, fragments), variables)
            case HostCopy(variable=variable, to_device=to_device):
                trace.time += 1
                trace.touch((variable,))
                if to_device and not variable.off_chip:
                    trace.fed.add(variable)
            case AllReduce(variables=variables):
                trace.time += 1
                trace.touch(variables)

    def _exchange(self, exchanged: Exchanged, variables: tuple[Variable, ...]) -> None:
        """Note what is sent; exchanges of equal size are taken for one outlined body."""
        if not self.executable.outlined:
            exchanged = exchanged._replace(number=len(self.trace.exchanges))
        self.trace.exchanges.setdefault(exchanged, variables)

    def _hold_until_sent(self, program: Program) -> None:
        """Hold what a function sends through those that its IPU runs after it in a cycle, which ends with the sends."""
        trace = self.trace
        for part in parts_of(program):
            self._hold_until_sent(part)
        for cell in program.bodies if isinstance(program, OnIpus) else ():
            calls = [part.function for part in leaves_of(cell) if isinstance(part, Call)]
            for place, function in enumerate(calls):
                end = max((trace.functions[later][1] for later in calls[place + 1 :]), default=0)
                for copy in leaves_of(self.executable.functions.get(f"{function}.send", NOTHING)):
                    if isinstance(copy, Copy):
                        trace.last[copy.src] = max(trace.last[copy.src], end)

    def _lifetimes(self, variable: Variable) -> list[Lifetime]:
        """Return when a variable is held: what is off chip, once for each function that uses it."""
        if not variable.off_chip or variable not in self.trace.first:
            return [self._lifetime(variable)]
        times = self.trace.off_chip[variable]
        spans = [[time for time in times if begin <= time <= end] for begin, end in self.trace.functions.values()]
        return [Lifetime(variable, min(span), max(span), always=False) for span in spans if span]

    def _overlaid(self, lifetimes: list[Lifetime]) -> list[Lifetime]:
        """Let results take the places of operands whose last reader their op is, each operand's once."""
        views, interleaved = self.executable.views, self.trace.interleaved
        held: dict[Variable, Lifetime] = {life.variable: life for life in lifetimes if not life.always}
        for group, begin, end in self.trace.spans.values():
            result = held.get(group.fields["out"]) if "out" in group.fields else None
            if result is None or result.begin != begin or result.variable in interleaved:
                continue
            for variable in operands_below(group, views):
                life = held.get(variable)
                is_last = life is not None and life.begin < begin and life.end == end
                if life is not None and is_last and variable not in interleaved:
                    life.end, result.over = begin - 1, variable
                    break
        return lifetimes

    def _lifetime(self, variable: Variable) -> Lifetime:
        trace = self.trace
        lasting = variable.role.is_state or variable.role in (Role.CONSTANT, Role.HYPERPARAMETER)
        unused = variable not in trace.first
        always = lasting or variable in trace.fed or unused
        begin, end = trace.first.get(variable, 0), trace.last.get(variable, 0)
        for first, last in trace.loops:  # inner loops come first
            if begin <= last and end >= first and (begin < first or end > last):
                begin, end = min(begin, first), max(end, last)  # shared with what lies around: held through all trips
        return Lifetime(variable, begin, end, always)


def _results(group: VertexGroup) -> Iterator[Variable]:
    """Yield the variables that an op gives its results in, without states, which others gave their place."""
    for number in range(len(group.op.outputs)):
        variable = group.fields.get(f"out{number}" if number else "out")
        if variable is not None and not variable.role.is_state:
            yield variable


def _first_calls(program: Program, executable: Executable) -> Iterator[str]:
    """Yield the functions of a program in the order in which it first calls them."""
    seen: dict[str, None] = {}

    def walk(part: Program) -> Iterator[str]:
        match part:
            case Call(function=function):
                if function not in seen:
                    seen[function] = None
                    yield function
            case Sequence(body=parts) | OnIpus(bodies=parts):
                for inner in parts:
                    yield from walk(inner)
            case Repeat(body=inner):
                yield from walk(inner)

    yield from walk(program)
    # Functions that no cycle calls are followed too: their variables need a place all the same.
    yield from (name for name in executable.functions if name not in seen)
