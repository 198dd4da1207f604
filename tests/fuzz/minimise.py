"""Cuts a program that fails down to the lines that make it fail.

A line is taken out by giving what it makes as an input. Greedy, from the largest pieces on, until nothing more comes
out; each trial is a compilation.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

import torch

from tests.fuzz.program import NAMES, Given, Program, without_dead

Fails = Callable[[Program], bool]


def minimise(program: Program, fails: Fails, seconds: float = 60.0) -> Program:
    """Return a program that still fails, as short as was found.

    Args:
        program: One that fails.
        fails: Whether another one fails in the same way.
        seconds: After which no further trial begins.
    """
    end = time.monotonic() + seconds
    shorter: Program | None = program
    while shorter is not None:
        program = shorter
        shorter = next(
            (one for one in _shorter(program) if time.monotonic() < end and _size(one) < _size(program) and fails(one)),
            None,
        )
    return program


def _size(program: Program) -> tuple[int, ...]:
    elements = sum(torch.Size(given.shape).numel() for given in program.inputs)
    odd = sum((given.layout != "contiguous") + given.gradient for given in program.inputs)
    return len(program.nodes), len(program.outputs), len(program.inputs), len(program.cuts), odd, elements


def _shorter(program: Program) -> Iterator[Program]:
    """Yield programs of which some part is left out, those first that leave out most."""
    for output in program.outputs:
        if len(program.outputs) > 1:
            yield without_dead(dataclasses.replace(program, outputs=(output,)))
    if len(program.outputs) > 1:
        for output in program.outputs:
            yield without_dead(dataclasses.replace(program, outputs=tuple(n for n in program.outputs if n != output)))
    dead = without_dead(program)
    if dead != program:
        yield dead
    values = _values(program)
    if values is not None:
        for piece in (8, 4, 2, 1):
            for start in range(0, len(program.nodes), piece):
                yield _with_given(program, range(start, min(start + piece, len(program.nodes))), values)
        for place in range(len(program.nodes)):
            yield from _passed_on(program, place, values)
    if program.cuts:
        yield dataclasses.replace(program, cuts=())
    for place, given in enumerate(program.inputs):
        if given.layout != "contiguous":
            yield _with_input(program, place, dataclasses.replace(given, layout="contiguous"))
        if given.gradient:
            yield _with_input(program, place, dataclasses.replace(given, gradient=False))


def _with_input(program: Program, place: int, given: Given) -> Program:
    return dataclasses.replace(program, inputs=(*program.inputs[:place], given, *program.inputs[place + 1:]))


def _values(program: Program) -> list[torch.Tensor] | None:
    """Return eager's value of each number."""
    every = tuple(range(program.firsts()[-1]))
    try:
        with torch.no_grad():
            return dataclasses.replace(program, outputs=every).function()(*program.tensors())
    except Exception:
        return None


def _with_given(program: Program, places: range, values: list[torch.Tensor]) -> Program:
    """Return the program where the results of some nodes are inputs."""
    firsts = program.firsts()
    gone = [number for place in places for number in range(firsts[place], firsts[place + 1])]
    inputs = (*program.inputs, *(_given(values[number], number, program) for number in gone))
    numbers = {number: len(program.inputs) + place for place, number in enumerate(gone)}
    return _renumbered(program, inputs, set(places), numbers)


def _passed_on(program: Program, place: int, values: list[torch.Tensor]) -> Iterator[Program]:
    """Yield programs where what reads a node reads one of its operands, if that is of the same size and type."""
    node, first = program.nodes[place], program.firsts()[place]
    for operand in dict.fromkeys(node.operands):
        alike = values[operand].shape == values[first].shape and values[operand].dtype == values[first].dtype
        if len(node.dtypes) == 1 and alike:
            yield _renumbered(program, program.inputs, {place}, {first: operand}, inputs_stay=True)


def _renumbered(
    program: Program, inputs: tuple[Given, ...], gone: set[int], known: dict[int, int], *, inputs_stay: bool = False,
) -> Program:
    """Return the program without some nodes, whose results are known by other numbers."""
    firsts, numbers = program.firsts(), {number: number for number in range(len(program.inputs))}
    following = len(inputs)
    for place in range(len(program.nodes)):
        for number in range(firsts[place], firsts[place + 1]):
            if place in gone:
                numbers[number] = numbers[known[number]] if inputs_stay else known[number]
            else:
                numbers[number] = following
                following += 1
    nodes = tuple(
        dataclasses.replace(node, operands=tuple(numbers[n] for n in node.operands))
        for place, node in enumerate(program.nodes) if place not in gone
    )
    cuts = tuple(sorted({sum(p < cut and p not in gone for p in range(cut)) for cut in program.cuts} - {0, len(nodes)}))
    outputs = tuple(sorted({numbers[n] for n in program.outputs}))
    return without_dead(dataclasses.replace(program, inputs=inputs, nodes=nodes, outputs=outputs, cuts=cuts))


def _given(value: torch.Tensor, number: int, program: Program) -> Given:
    is_integral = not value.is_floating_point() and value.dtype != torch.bool and value.numel() > 0
    bound = max(int(value.max()) + 1, 1) if is_integral else 2
    return Given(
        tuple(value.shape), NAMES[value.dtype], gradient=value.is_floating_point(), bound=bound, seed=number,
        is_special=program.is_special,
    )
