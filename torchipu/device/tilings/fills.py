"""Compute sets that read nothing: constants and numberings."""

from __future__ import annotations

from functools import partial

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import everything, ranges
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run


def filled(name: str | None, value: float = 0) -> Tiling:
    """Return the tiling of a fill: one vertex for each run of the result.

    Args:
        name: The argument that holds the value, a number or a tensor of one element; None for a constant.
        value: The constant.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        tiles, begin, end = one_a_run(runs)
        result, given = op.outputs[0], op.operand(name) if name else None
        reads = (everything(str(name), 1, len(tiles)),) if given is not None else ()
        if given is None:
            number = op.number(name) if name else value
            code = partial(_constant, result, number)
        else:
            code = partial(_shared_out, given, result)
        return VertexSet(tiles, reads, (ranges("out", begin, end),), (end - begin).reshape(-1, 1), code)

    return tiling


def _constant(result: Tensor, value: float, sizes: Sizes) -> Graph:
    return constant(result, sizes[0], value)


def constant(result: Tensor, count: int, value: float) -> Graph:
    """Return code that fills so many elements of a result with a number."""
    code = Code()
    return code.graph([code.full(value, result.dtype, count)])


def _shared_out(given: Tensor, result: Tensor, sizes: Sizes) -> Graph:
    """Return code that fills a result with the one element of a tensor."""
    code = Code()
    spread = code.run("aten.expand.default", [(given.dtype, sizes)], {"size": [*sizes]}, self=code.part(given, 1))[0]
    return code.graph([code.copied(spread, result.dtype)])


def numbered(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of an ``arange`` or ``linspace``, which numbers its own elements."""
    tiles, begin, end = one_a_run(runs)
    result = op.outputs[0]
    first, step = _progression(op)

    def code(sizes: Sizes) -> Graph:
        before, count = sizes
        start = first + before * step
        # A half step before the one that is not taken any more: no rounding makes it one too many.
        stop = start + count * step if isinstance(step, int) else start + (count - 0.5) * step
        attrs = {"start": start, "end": stop, "step": step, "dtype": result.dtype}
        written = Code()
        return written.graph(written.run("aten.arange.start_step", [(result.dtype, (count,))], attrs))

    return VertexSet(tiles, (), (ranges("out", begin, end),), np.stack((begin, end - begin), 1), code)


def _progression(op: Op) -> tuple[float, float]:
    """Return the first element and the step."""
    result = op.outputs[0]
    if "steps" in op.attrs:
        first, last = float(op.number("start")), float(op.number("end"))
        return first, (last - first) / (result.num_elements - 1) if result.num_elements > 1 else 1.0
    first, step = op.number("start", 0), op.number("step", 1)
    return (float(first), float(step)) if result.dtype.is_floating else (int(first), int(step))
