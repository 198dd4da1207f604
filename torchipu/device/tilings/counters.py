"""Compute sets that count: elements beyond an edge, and the gradients of a running mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import everything, in_turn, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, local, one_a_run

COUNTS = "counts"
"""Partials: how many elements of a stretch are beyond the edge."""


def running_mean(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of a mean over gradients; the first one counts the gradient besides.

    Args:
        op: Takes the mean, a gradient, and how many there were before.
        runs: Of the mean.
        part: The only one.
    """
    tiles, begin, end = one_a_run(runs)
    held, gradient, count = op.inputs
    labels = operand_labels(op)
    is_first = (np.arange(len(tiles)) == 0).astype(np.int64)
    reads = ranges(labels[0], begin, end), ranges(labels[1], begin, end), everything(labels[2], 1, len(tiles))
    writes = ranges("out", begin, end), ranges("out1", np.zeros_like(is_first), is_first)

    def code(sizes: Sizes) -> Graph:
        elements, counts_here = sizes
        given = local(held, elements), local(gradient, elements), count
        mean, after = local(op.outputs[0], elements), op.outputs[1]
        inner = replace(op, inputs=given, outputs=(mean, after))
        if counts_here:
            return Graph("vertex", given, (mean, after), (inner,))
        written = Code()
        nothing = written.full(0.0, count.dtype, 0)
        return Graph("vertex", given, (mean, nothing), (inner, *written.ops))

    return VertexSet(tiles, reads, writes, np.stack((end - begin, is_first), 1), code)


def beyond(stretches: int) -> Tiling:
    """Return the tiling of a count of elements that are not within an edge: a vertex for each stretch of a gradient.

    Args:
        stretches: How many there are.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        run_tiles, _, _ = one_a_run(runs)
        gradient = op.inputs[1]
        number = np.arange(stretches, dtype=np.int64)
        begin, end = number * gradient.num_elements // stretches, (number + 1) * gradient.num_elements // stretches

        def code(sizes: Sizes) -> Graph:
            written = Code()
            size = written.unary("abs", written.cast(written.given(gradient.dtype, *sizes), DType.FLOAT))
            within = _total(written, written.compared("le", size, op.number("edge")))
            return written.graph([written.run(
                "aten.rsub.Scalar", [(DType.LONG, (1,))], {"other": sizes[0], "alpha": 1}, self=within,
            )[0]])

        return VertexSet(
            run_tiles[number * len(run_tiles) // stretches], (ranges(operand_labels(op)[1], begin, end),),
            (in_turn(COUNTS, np.ones_like(begin), DType.LONG),), (end - begin).reshape(-1, 1), code,
        )

    return tiling


def _total(code: Code, values: Tensor) -> Tensor:
    attrs = {"dim": [0], "keepdim": True, "dtype": DType.LONG}
    return code.run("aten.sum.dim_IntList", [(DType.LONG, (1,))], attrs, self=values)[0]


def counted(stretches: int) -> Tiling:
    """Return the tiling of the set that adds what ``beyond`` counts to the counter: one vertex.

    Args:
        stretches: How many have been counted.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        label, elements = operand_labels(op)[0], op.inputs[1].num_elements

        def code(sizes: Sizes) -> Graph:
            written = Code()
            large, every, counts = (written.given(DType.LONG, size) for size in (1, 1, stretches))
            here = _total(written, counts)
            return written.graph([written.binary("add", large, here), written.binary("add", every, elements)])

        reads = ranges(label, [0], [1]), ranges(label, [1], [2]), everything(COUNTS, stretches, 1)
        writes = ranges("out", [0], [1]), ranges("out", [1], [2])
        return VertexSet(one_a_run(runs)[0][:1], reads, writes, np.zeros((1, 0), np.int64), code)

    return tiling
