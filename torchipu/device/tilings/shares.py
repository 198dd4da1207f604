"""Compute sets whose vertices need all there is for their share of the result, which depends on data."""

from __future__ import annotations

import numpy as np

from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import everything, ranges
from torchipu.ir.vertices import Sizes, VertexSet, one_a_run


def of_everything(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of the only result, which has all operands and keeps its own elements.

    Args:
        op: The op.
        runs: Of the result.
        part: The only one.
    """
    tiles, begin, end = one_a_run(runs)
    label_of = {tensor: label for label, tensor in zip(operand_labels(op), op.inputs, strict=True)}
    operands = tuple(dict.fromkeys(op.inputs))
    result = op.outputs[0]
    flat = Tensor("flat", (result.num_elements,), result.dtype)

    def code(sizes: Sizes) -> Graph:
        first, last = sizes
        made = Tensor("mine", (last - first,), result.dtype)
        attrs = {"dim": 0, "start": first, "end": last, "step": 1}
        return Graph("vertex", operands, (made,), (
            op,
            Op("view", (result,), (flat,), {"size": list(flat.shape)}, "aten.view.default", ("self",)),
            Op("slice", (flat,), (made,), attrs, "aten.slice.Tensor", ("self",)),
        ))

    reads = tuple(everything(label_of[tensor], tensor.num_elements, len(tiles)) for tensor in operands)
    return VertexSet(tiles, reads, (ranges("out", begin, end),), np.stack((begin, end), 1), code)
