"""Compute sets whose vertices handle each element apart from all others."""

from __future__ import annotations

import numpy as np

from torchipu.device.tiles.layout import is_wide
from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, everything, listed, ranges
from torchipu.ir.vertices import Sizes, VertexSet, one_a_run
from torchipu.optable.spec import spec_of


def pointwise(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of an op's result: the op itself, on these elements.

    Operands of one element are read by every vertex, smaller ones are broadcast; results have the result's size.

    Args:
        op: The op.
        runs: Of the result, or of the state that the op overwrites.
        part: The only one.
    """
    tiles, begin, end = one_a_run(runs)
    result = op.outputs[0]
    labels = operand_labels(op)
    distinct = {tensor: label for label, tensor in reversed(list(zip(labels, op.inputs, strict=True)))}
    operands = list(dict.fromkeys(op.inputs))
    reads = tuple(operand_region(distinct[tensor], tensor, result, begin, end) for tensor in operands)
    writes = tuple(
        ranges("out" if index == 0 else f"out{index}", begin, end) for index in range(len(op.outputs))
    )

    def code(sizes: Sizes) -> Graph:
        written = Code()
        parts = {
            tensor: written.part(tensor, *(sizes if _is_shared_out(tensor, result) else tensor.shape))
            for tensor in operands
        }
        return written.graph(written.again(op, [parts[tensor] for tensor in op.inputs], *[sizes] * len(op.outputs)))

    return VertexSet(tiles, reads, writes, (end - begin).reshape(-1, 1), code)


def is_pointwise(op: Op) -> bool:
    """Whether a kernel of the op on a part of its operands gives that part of its results."""
    spec = spec_of(op)
    return spec is not None and spec.instruction is not None and not spec.is_random and all(
        _is_shared_out(tensor, op.outputs[0]) or tensor.num_elements == 1 for tensor in op.inputs
    )


def operand_region(label: str, operand: Tensor, result: Tensor, begin: Numbers, end: Numbers) -> Region:
    """Return what vertices read of an operand that is broadcast to the result, of which each makes a range.

    Args:
        label: Of the operand.
        operand: The operand.
        result: The result.
        begin: First element of each vertex.
        end: That after its last.

    Raises:
        ValueError: The shapes do not go together.
    """
    if not _is_shared_out(operand, result):
        return everything(label, operand.num_elements, len(begin))
    if operand.num_elements == result.num_elements:
        return ranges(label, begin, end)
    numbers = np.arange(operand.num_elements, dtype=np.int64).reshape(operand.shape)
    spread = np.broadcast_to(numbers, result.shape).reshape(-1)
    return listed(label, np.concatenate([spread[b:e] for b, e in zip(begin, end, strict=True)]), end - begin)


def _is_shared_out(operand: Tensor, result: Tensor) -> bool:
    """Whether each vertex reads its own elements of an operand, and not all there are."""
    if is_wide(operand):
        return False  # as many words as hyper-parameters have a weight may have elements
    if operand.num_elements == 1 or operand.num_elements == result.num_elements:
        return operand.num_elements != 1 or result.num_elements == 1
    try:
        return np.broadcast_shapes(operand.shape, result.shape) == result.shape
    except ValueError:
        return False

