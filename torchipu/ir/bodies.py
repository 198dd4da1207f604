"""Graphs within graphs: the bodies of control flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchipu.ir.graph import Graph


def with_bodies_changed(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """Return a graph whose ops run changed bodies; the same object where none of them has become another.

    Args:
        graph: A valid graph.
        change: Takes a body and returns it changed, or as it is; what it takes and gives stays.
    """
    if not any(op.bodies for op in graph.ops):
        return graph
    ops = []
    for op in graph.ops:
        bodies = tuple(change(body) for body in op.bodies)
        unchanged = all(new is old for new, old in zip(bodies, op.bodies, strict=True))
        ops.append(op if unchanged else replace(op, bodies=bodies))
    if all(new is old for new, old in zip(ops, graph.ops, strict=True)):
        return graph
    return replace(graph, ops=tuple(ops))
