"""Ops that nothing reads any more, since what has read them reads something else."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torchipu.ir.graph import Graph, Op, Tensor


def without_dead(ops: Sequence[Op], graph: Graph, targets: Collection[str]) -> tuple[Op, ...]:
    """Leave out ops that have no readers.

    Args:
        ops: In order.
        graph: The one whose results they make.
        targets: Of ops that may be left out.
    """
    read: set[Tensor] = {*graph.outputs, *(value for _, value in graph.updates)}
    kept: list[Op] = []
    for op in reversed(ops):
        if op.target in targets and not read.intersection(op.outputs):
            continue
        read.update(op.inputs)
        read.update(tensor for body in op.bodies for inner in body.ops for tensor in inner.inputs)
        kept.append(op)
    return tuple(reversed(kept))
