"""Numbers the ops that draw random bits, each of which has a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchipu.ir.graph import Graph, Op, walk_ops
from torchipu.ir.types import Leg
from torchipu.optable.random_streams import FIRST_STREAMS, RANDOM_STREAM, draws


def number_random_streams(graph: Graph) -> Graph:
    """Return a graph whose ops that draw random bits say of which stream, in the order of the ops of a leg.

    Their bits are then those of the number, whoever runs the op, in whatever order and part of the graph; an op that
    is recomputed draws the same ones again.

    Args:
        graph: A valid graph.

    Returns:
        The new graph, or the same object where nothing draws.
    """
    if not any(draws(op) for op in walk_ops(graph.ops)):
        return graph
    return replace(graph, ops=_numbered(graph.ops, dict(FIRST_STREAMS)))


def _numbered(ops: Sequence[Op], due: dict[Leg, int]) -> tuple[Op, ...]:
    """Return the ops with numbers, those in the bodies of control flow too."""
    made = []
    for op in ops:
        if draws(op):
            op = replace(op, attrs={**op.attrs, RANDOM_STREAM: due[op.leg]})
            due[op.leg] += 1
        if op.bodies:
            op = replace(op, bodies=tuple(replace(body, ops=_numbered(body.ops, due)) for body in op.bodies))
        made.append(op)
    return tuple(made)
