"""Collectives over processes to programs: copies on the IPU, and the collective over the links between IPUs.

Every process holds one replica of what it compiles, on IPUs of its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Members
from dataclasses import replace

from torchipu.ir.graph import Op
from torchipu.ir.program import AllReduce, Copy, Program, Sync, Variable
from torchipu.ir.types import Role
from torchipu.optable.collective import ALL_GATHER, PATTERNS, POINT_TO_POINT, PROCESSES, REDUCE_SCATTER

MEAN = "avg"


def programs_of(
    op: Op, operands: Members[Variable], results: Members[Variable],
) -> tuple[list[Program], list[Variable]]:
    """Return the programs of a collective, and the variables that it needs besides its operands and results.

    Args:
        op: The collective.
        operands: What it reads.
        results: What it writes.
    """
    pattern, processes = PATTERNS[op.target], int(str(op.attrs[PROCESSES]))
    is_mean = op.attrs.get("reduce_op") == MEAN
    if pattern == POINT_TO_POINT:
        moved = tuple(variable for variable in (*operands, *results) if variable.num_elements)
        return [Sync("replica"), AllReduce(moved[:1], False, 2, pattern)] if moved else [], []
    if pattern == REDUCE_SCATTER:
        # The sums come about beside the operand, which may be read again.
        whole = [
            replace(given, name=f"{given.name}.for.{made.name}", role=Role.ACTIVATION, depth=1)
            for given, made in zip(operands, results, strict=True)
        ]
        return [
            *_copies(operands, whole), Sync("replica"), AllReduce(tuple(whole), is_mean, processes, pattern),
            *_copies(whole, results),
        ], whole
    shares = operands if pattern == ALL_GATHER else results
    return [
        *_copies(operands, results, shares), Sync("replica"), AllReduce(tuple(results), is_mean, processes, pattern),
    ], []


def _copies(
    sources: Members[Variable], targets: Members[Variable], sizes: Members[Variable] | None = None,
) -> list[Program]:
    """Copy each source to its target; what is copied has the size of the smaller one unless told."""
    programs: list[Program] = []
    for number, (src, dst) in enumerate(zip(sources, targets, strict=True)):
        size = sizes[number] if sizes is not None else min(src, dst, key=lambda one: one.num_elements)
        if size.num_elements:
            largest = size.mapping.max_elements_per_tile() * size.dtype.device_bytes
            programs += [Sync("ipu"), Copy(src, dst, size.device_bytes, largest)]
    return programs
