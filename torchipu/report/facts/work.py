"""How much arithmetic an op is, whatever machine it runs on."""

from __future__ import annotations

from torchipu.ir.graph import Op
from torchipu.optable.spec import spec_of

RECURRENCES = {"recurrence": 1, "recurrence_backward": 2}
"""Recurrent ops, with how many products of its weight each makes in a step in time."""


def flops_of(op: Op) -> int:
    """Return two for each multiplication of a product, and one for each element that other arithmetic computes.

    Moves, look-ups and comparisons of indices are none. Ops with a body count nothing themselves.

    Args:
        op: Of a graph.
    """
    spec = spec_of(op)
    if spec is None or op.bodies:
        return 0
    if op.kind in RECURRENCES:
        time, batch = op.inputs[0].shape[:2]
        return 2 * RECURRENCES[op.kind] * time * batch * op.needed("weight").num_elements
    if spec.products is not None:
        return 2 * sum(one.groups * one.positions * one.inputs * one.outputs for one in spec.products(op))
    if not op.outputs or not op.outputs[0].dtype.is_floating or spec.is_view:
        return 0
    return sum(result.num_elements for result in op.outputs) if spec.instruction is not None else 0
