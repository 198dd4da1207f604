"""Compute sets of gated units, whose operand has two halves along a dimension."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, listed, ranges
from torchipu.ir.vertices import Sizes, VertexSet, local, one_a_run


def gated(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of the result: it reads these elements of either half of the operand.

    Args:
        op: Of an operand, or of it and the result's gradient.
        runs: Of the result.
        part: The only one.
    """
    tiles, begin, end = one_a_run(runs)
    operand, result = op.inputs[0], op.outputs[0]
    both = listed("self", _pairs(_halves(operand, op), begin, end), 2 * (end - begin))

    def code(sizes: Sizes) -> Graph:
        given, made = local(operand, 2, *sizes), local(result, 1, *sizes)
        return _alone(op, (given,), made)

    return VertexSet(tiles, (both,), (ranges("out", begin, end),), (end - begin).reshape(-1, 1), code)


def gated_gradient(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of the gradient of the operand; it makes as many elements, in either half."""
    tiles, begin, end = one_a_run(runs)
    begin, end = begin // 2, end // 2  # together the runs have as many elements as both halves
    incoming, operand = op.needed("grad_output"), op.needed("self")
    halves = _pairs(_halves(operand, op), begin, end)
    counts = end - begin

    def code(sizes: Sizes) -> Graph:
        given = {incoming: local(incoming, 1, *sizes, name="grad"), operand: local(operand, 2, *sizes, name="self")}
        return _alone(op, tuple(given[tensor] for tensor in op.inputs), local(op.outputs[0], 2, *sizes))

    reads = {"grad_output": ranges("grad_output", begin, end), "self": listed("self", halves, 2 * counts)}
    write = listed("out", halves, 2 * counts)
    return VertexSet(tiles, tuple(reads[name] for name in op.operands), (write,), counts.reshape(-1, 1), code)


def _alone(op: Op, inputs: tuple[Tensor, ...], result: Tensor) -> Graph:
    inner = replace(op, inputs=inputs, outputs=(result,), attrs={**op.attrs, "dim": 0})
    return Graph("vertex", inputs, (result,), (inner,))


def _halves(operand: Tensor, op: Op) -> Numbers:
    """Return the elements of both halves, ``[2, elements of one]``."""
    numbers = np.arange(operand.num_elements, dtype=np.int64).reshape(operand.shape)
    return np.stack([half.reshape(-1) for half in np.split(numbers, 2, op.integer("dim"))])


def _pairs(halves: Numbers, begin: Numbers, end: Numbers) -> Numbers:
    """Return the elements of ranges of both halves, range by range."""
    return np.concatenate([halves[:, b:e].reshape(-1) for b, e in zip(begin, end, strict=True)])
