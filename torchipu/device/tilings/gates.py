"""Compute sets of gated units, whose operand has two halves along a dimension."""

from __future__ import annotations

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, listed, ranges
from torchipu.ir.vertices import Sizes, VertexSet, one_a_run


def gated(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of the result: it reads these elements of either half of the operand.

    Args:
        op: Of an operand, or of it and the result's gradient.
        runs: Of the result.
        part: The only one.
    """
    tiles, begin, end = one_a_run(runs)
    operand = op.inputs[0]
    both = listed("self", _pairs(_halves(operand, op), begin, end), 2 * (end - begin))

    def code(sizes: Sizes) -> Graph:
        written = Code()
        return written.graph(written.again(op, [written.part(operand, 2, *sizes)], (1, *sizes), dim=0))

    return VertexSet(tiles, (both,), (ranges("out", begin, end),), (end - begin).reshape(-1, 1), code)


def gated_gradient(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of the gradient of the operand; it makes as many elements, in either half."""
    tiles, begin, end = one_a_run(runs)
    begin, end = begin // 2, end // 2  # together the runs have as many elements as both halves
    operand = op.needed("self")
    halves = _pairs(_halves(operand, op), begin, end)
    counts = end - begin

    def code(sizes: Sizes) -> Graph:
        written = Code()
        given = [written.part(tensor, 2 if tensor is operand else 1, *sizes) for tensor in op.inputs]
        return written.graph(written.again(op, given, (2, *sizes), dim=0))

    reads = {"grad_output": ranges("grad_output", begin, end), "self": listed("self", halves, 2 * counts)}
    write = listed("out", halves, 2 * counts)
    return VertexSet(tiles, tuple(reads[name] for name in op.operands), (write,), counts.reshape(-1, 1), code)


def _halves(operand: Tensor, op: Op) -> Numbers:
    """Return the elements of both halves, ``[2, elements of one]``."""
    numbers = np.arange(operand.num_elements, dtype=np.int64).reshape(operand.shape)
    return np.stack([half.reshape(-1) for half in np.split(numbers, 2, op.integer("dim"))])


def _pairs(halves: Numbers, begin: Numbers, end: Numbers) -> Numbers:
    """Return the elements of ranges of both halves, range by range."""
    return np.concatenate([halves[:, b:e].reshape(-1) for b, e in zip(begin, end, strict=True)])
