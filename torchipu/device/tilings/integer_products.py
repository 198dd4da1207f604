"""Products of integers: each vertex takes a row of the left operand and a column of the right one for each result."""

from __future__ import annotations

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.products import Describe
from torchipu.ir.graph import Graph, Op, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import listed, ranges
from torchipu.ir.vertices import Sizes, VertexSet, one_a_run


def multiply_integers(describe: Describe, op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of results.

    Args:
        describe: Tells what meets what.
        op: A product whose result is ``[positions, outputs]``, with groups before them or not, or ``[positions]``.
        runs: Of the result.
        part: The only one.
    """
    product, result = describe(op), op.outputs[0]
    tiles, begin, end = one_a_run(runs)
    sizes = (1, *result.shape, 1) if len(result.shape) == 1 else (1, *result.shape)[-3:]
    numbers = np.arange(result.num_elements, dtype=np.int64)
    groups, positions, outputs = (digits[:, None] for digits in np.unravel_index(numbers, sizes))
    inputs = np.arange(product.inputs, dtype=np.int64)[None, :]
    counts = (end - begin) * product.inputs
    reads = [
        listed(factor.name, np.broadcast_to(
            factor.elements(groups, across, inputs, 0), (len(numbers), product.inputs)), counts)
        for factor, across in ((product.left, positions), (product.right, outputs))
    ]
    if product.addend is not None:
        added = np.broadcast_to(product.addend.elements(groups, positions, outputs), (len(numbers), 1))
        reads.append(listed(product.addend.name, added, end - begin))
    tensors = dict(zip(operand_labels(op), op.inputs, strict=True))

    def code(sizes: Sizes) -> Graph:
        written, dtype = Code(), result.dtype
        left, right = (
            written.given(tensors[one.name].dtype, sizes[0], product.inputs) for one in (product.left, product.right)
        )
        value = written.summed(written.binary("mul", left, right, dtype), dtype, keepdim=False)
        if product.alpha != 1:
            value = written.binary("mul", value, int(product.alpha))
        if product.addend is not None:
            addend = written.given(tensors[product.addend.name].dtype, *sizes)
            value = written.binary("add", value, addend, dtype, alpha=int(product.addend.factor))
        return written.graph([value])

    return VertexSet(tiles, tuple(reads), (ranges("out", begin, end),), (end - begin).reshape(-1, 1), code)
