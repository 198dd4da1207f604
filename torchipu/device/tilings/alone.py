"""Compute sets of one vertex that computes a whole op of a few words."""

from __future__ import annotations

import numpy as np

from torchipu.ir.graph import Op, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import everything
from torchipu.ir.vertices import VertexSet, code_of


def alone(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return the only vertex of an op, which reads all of its operands and writes all of its results.

    Args:
        op: The op.
        runs: On the tile of the vertex.
        part: The only one.
    """
    label_of = {tensor: label for label, tensor in zip(operand_labels(op), op.inputs, strict=True)}
    code = code_of(op)
    reads = tuple(everything(label_of[tensor], tensor.num_elements, 1) for tensor in code.inputs)
    writes = tuple(
        everything("out" if index == 0 else f"out{index}", tensor.num_elements, 1)
        for index, tensor in enumerate(op.outputs)
    )
    return VertexSet(np.array([runs.runs[0][0]]), reads, writes, np.zeros((1, 0), np.int64), lambda sizes: code)
