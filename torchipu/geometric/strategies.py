"""How batches are made of one size, and what becomes of those that are too large."""

from __future__ import annotations

from enum import Enum


class FixedSizeStrategy(Enum):
    """How graphs are put into batches of a fixed size."""

    PadToMax = "pad_to_max"
    """As many graphs in each batch, filled up to the size of the largest."""
    StreamPack = "stream_pack"
    """As many graphs as fit, in the order in which they come."""


class OverSizeStrategy(Enum):
    """What becomes of graphs that are larger than the fixed size."""

    Error = "error"
    TrimNodes = "trim_nodes"
    TrimEdges = "trim_edges"
    TrimNodesAndEdges = "trim_nodes_and_edges"

    @property
    def trims_nodes(self) -> bool:
        """Whether nodes may be left out."""
        return self in (OverSizeStrategy.TrimNodes, OverSizeStrategy.TrimNodesAndEdges)

    @property
    def trims_edges(self) -> bool:
        """Whether edges may be left out."""
        return self in (OverSizeStrategy.TrimEdges, OverSizeStrategy.TrimNodesAndEdges)
