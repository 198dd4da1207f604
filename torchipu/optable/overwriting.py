"""Which operands of a chain may lie where it stores a result: those that it has read before."""

from __future__ import annotations

from collections.abc import Sequence

from torchipu._kernels.table.elementwise import OPERATIONS, ChainInstruction

_REFUSING = frozenset(OPERATIONS[name] for name in ("l_floor_div", "l_trunc_div", "l_remainder", "l_fmod"))
"""Instructions that stop a program where a divisor is zero."""
_LOAD = OPERATIONS["x_load"]
_OF_TWO = frozenset(OPERATIONS[name] for name in ("x_load_pair", "x_store_pair", "x_multiply_pairs"))
"""Instructions with two results."""


def may_refuse(program: Sequence[ChainInstruction]) -> bool:
    """Whether a chain may stop at a value, so that part of its results is missing."""
    return any(instruction.operation in _REFUSING for instruction in program)


def overwritten(
    program: Sequence[ChainInstruction], arguments: Sequence[int | None], num_results: int, num_operands: int,
) -> tuple[frozenset[int], ...]:
    """Return for each result of a chain the operands whose place it may take.

    All instructions run for a block of elements before those for the next one, and each reads an element before it
    writes the one at the same place: what counts is whether one reads the operand after another has written the result.
    A register that an operand is loaded into may show it where it lies, until something else is written there.

    Args:
        program: The instructions.
        arguments: For each slot the argument that an instruction reads or writes there, results first; None for one
            that lies in registers, where an operand of one element is brought before the first instruction.
        num_results: How many of the arguments are results.
        num_operands: How many follow these.
    """
    first_write = [len(program)] * num_results
    last_read = [-1] * num_operands
    shown: dict[int, int | None] = {}  # by the slot of a register
    for number, instruction in enumerate(program):
        for slot in (instruction.a, instruction.b, instruction.c):
            argument = shown.get(slot, arguments[slot])
            if argument is not None and argument >= num_results:
                last_read[argument - num_results] = number
        is_pair = instruction.operation in _OF_TWO
        for slot in (instruction.result, instruction.c) if is_pair else (instruction.result,):
            target = arguments[slot]
            if target is None:
                shown[slot] = arguments[instruction.a] if instruction.operation == _LOAD else None
            elif target < num_results:
                first_write[target] = min(first_write[target], number)
    return tuple(
        frozenset(operand for operand, read in enumerate(last_read) if read <= written) for written in first_write
    )
