"""Compute sets that find nothing left to do, because the vertices of an earlier one have done it."""

from __future__ import annotations

from torchipu.ir.graph import Op
from torchipu.ir.mapping import TileMapping
from torchipu.ir.vertices import VertexSet


def nothing_left(op: Op, runs: TileMapping, part: int = 0) -> VertexSet | None:
    """Return no vertices.

    Args:
        op: The op.
        runs: Of the set.
        part: Of the set.
    """
    return None
