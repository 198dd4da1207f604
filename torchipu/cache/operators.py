"""Operators that graphs of the compile cache may have: those whose meaning a version tells."""

from __future__ import annotations

from torchipu.cache.described import OpaqueError
from torchipu.ir.graph import Graph, walk_ops

NAMESPACES = frozenset({"aten", "prims", "ipu"})
"""Of operators that do the same wherever torch and torchipu are the same."""


def refuse_foreign_operators(graph: Graph) -> None:
    """Raise OpaqueError where a graph has operators whose meaning no version tells."""
    for op in walk_ops(graph.ops):
        if op.target and op.target.partition(".")[0] not in NAMESPACES:
            raise OpaqueError(f"{op.target} may be registered differently elsewhere")
