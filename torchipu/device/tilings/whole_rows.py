"""Compute sets over elements whose vertices take whole rows of the result, and of the operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchipu.ir.graph import Graph, Op, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import ranges
from torchipu.ir.vertices import Sizes, VertexSet, local, one_a_run


def whole_rows(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run in which rows of the result begin: the op itself, on these rows.

    Args:
        op: The op; its operands have as many rows, along their last dimensions, as its only result.
        runs: Of the elements of the result.
        part: The only one.
    """
    tiles, begin, end = one_a_run(runs)
    (result,) = op.outputs
    width = result.shape[-1]
    low, high = -(-begin // width), -(-end // width)
    some = np.flatnonzero(high > low)
    low, high = low[some], high[some]
    reads = tuple(
        ranges(label, low * tensor.shape[-1], high * tensor.shape[-1])
        for label, tensor in zip(operand_labels(op), op.inputs, strict=True)
    )

    def code(sizes: Sizes) -> Graph:
        parts = tuple(local(tensor, sizes[0], tensor.shape[-1]) for tensor in op.inputs)
        made = local(result, sizes[0], width)
        return Graph("vertex", parts, (made,), (replace(op, inputs=parts, outputs=(made,)),))

    return VertexSet(
        tiles[some], reads, (ranges("out", low * width, high * width),), (high - low).reshape(-1, 1), code,
    )
