"""Products of integers: each vertex takes a row of the left operand and a column of the right one for each result."""

from __future__ import annotations

import numpy as np

from torchipu.device.tilings.local_ops import LocalOps
from torchipu.device.tilings.products import Describe
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
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
        shape, dtype = (sizes[0], product.inputs), result.dtype
        factors = [Tensor(one.name, shape, tensors[one.name].dtype) for one in (product.left, product.right)]
        addend = product.addend and Tensor("addend", sizes, tensors[product.addend.name].dtype)
        made = LocalOps(*factors, *([addend] if addend else []))
        value = made.add("aten.mul.Tensor", factors, ("self", "other"), shape, dtype)
        value = made.unary("aten.sum.dim_IntList", value, sizes, dim=(1,), keepdim=False, dtype=dtype)
        if product.alpha != 1:
            value = made.unary("aten.mul.Scalar", value, other=int(product.alpha))
        if addend and product.addend:
            factor = int(product.addend.factor)
            value = made.add("aten.add.Tensor", (value, addend), ("self", "other"), sizes, dtype, alpha=factor)
        return made.graph((value, dtype))

    return VertexSet(tiles, tuple(reads), (ranges("out", begin, end),), (end - begin).reshape(-1, 1), code)
