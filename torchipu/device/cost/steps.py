"""The steps of a function one by one, with what each takes: what `function_cost` adds up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchipu.device.cost.cycles import function_cost, leaf_cycles
from torchipu.ir.program import Call, Execute, HostCopy, If, Program, Repeat, RepeatWhile, Sequence, parts_of
from torchipu.target import Target


@dataclass(frozen=True, slots=True)
class Step:
    """A program that holds no others, within a function.

    Attributes:
        category: ``compute``, ``exchange``, ``sync``, ``link``, ``all-reduce`` or ``host``.
        cycles: Of one run.
        runs: Within one run of the function; 0 for those of a branch that is not counted.
        leaf: The program.
        overlaps: Whether it runs beside the others.
    """

    category: str
    cycles: int
    runs: int
    leaf: Program
    overlaps: bool = False


def steps_of(
    program: Program, target: Target, functions: Mapping[str, Program], ipus_per_replica: int = 1, runs: int = 1,
) -> Iterator[Step]:
    """Yield the steps of a function in the order in which they are written down.

    Args:
        program: Its body.
        target: The machine.
        functions: All functions, for calls within the body.
        ipus_per_replica: IPUs of each of the replicas that add up gradients.
        runs: How often the body runs.
    """
    match program:
        case Call(function=function):
            yield from steps_of(functions[function], target, functions, ipus_per_replica, runs)
        case Repeat(count=count, body=body):
            yield from steps_of(body, target, functions, ipus_per_replica, runs * count)
        case If():
            branches = parts_of(program)
            spent = [function_cost("", branch, target, functions, ipus_per_replica).cycles for branch in branches]
            dearest = spent.index(max(spent))
            for number, branch in enumerate(branches):
                counted = runs if number == dearest else 0
                yield from steps_of(branch, target, functions, ipus_per_replica, counted)
        case Sequence() | RepeatWhile():
            for part in parts_of(program):
                yield from steps_of(part, target, functions, ipus_per_replica, runs)
        case _:
            category, cycles = leaf_cycles(program, target, ipus_per_replica)
            overlaps = isinstance(program, HostCopy) and program.overlap != "none"
            yield Step(category, cycles, runs, program, overlaps)


def name_of(leaf: Program) -> str:
    """Return what a step is called: its compute set, its stream, or its kind."""
    match leaf:
        case Execute(compute_set=compute_set):
            return compute_set.name
        case HostCopy(stream=stream):
            return stream
    return type(leaf).__name__.lower()
