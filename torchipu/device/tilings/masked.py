"""Compute sets in which the set elements of a mask take those of a source in turn: a count, then a look-up."""

from __future__ import annotations

import numpy as np

from torchipu.device.tilings.blocks import tile_of_each
from torchipu.device.tilings.code import Code
from torchipu.device.tilings.pointwise import operand_region
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, in_turn, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run

COUNTS = "counts"
"""Partials: how many elements of a stretch are set."""


def _borders(elements: int, stretches: int) -> Numbers:
    return np.arange(stretches + 1, dtype=np.int64) * elements // stretches


def counted(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return the vertices that count the set elements of a stretch each.

    Args:
        op: The op.
        runs: Of the stretches.
        part: The only one.
    """
    result, mask = op.outputs[0], op.needed("mask")
    borders = _borders(result.num_elements, runs.num_elements)
    read = operand_region("mask", mask, result, borders[:-1], borders[1:])
    counts = read.counts()

    def code(sizes: Sizes) -> Graph:
        written = Code()
        return written.graph([_total(written, written.given(mask.dtype, *sizes))])

    return VertexSet(
        tile_of_each(runs), (read,), (in_turn(COUNTS, np.ones_like(counts), DType.LONG),), counts.reshape(-1, 1), code,
    )


def _total(code: Code, values: Tensor) -> Tensor:
    attrs = {"dim": [0], "keepdim": False, "dtype": DType.LONG}
    return code.run("aten.sum.dim_IntList", [(DType.LONG, ())], attrs, self=values)[0]


def taken(stretches: int) -> Tiling:
    """Return the tiling of the look-up: a vertex has a run of the result, and all of the source that it may need.

    Args:
        stretches: How many have been counted.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        tiles, begin, end = one_a_run(runs)
        result, old, mask, source = op.outputs[0], op.needed("self"), op.needed("mask"), op.needed("source")
        borders = _borders(result.num_elements, stretches)
        whole = np.searchsorted(borders, begin, side="right") - 1  # stretches that end before the run
        lead = begin - borders[whole]
        needed = np.minimum(end, source.num_elements)
        # A mask of one element is the same for all: which stretch it is counted in makes no difference.
        masks = operand_region("mask", mask, result, borders[whole], end)
        bases = operand_region("self", old, result, begin, end)
        nobody = np.zeros_like(whole)
        reads = (
            bases, masks, ranges(COUNTS, nobody, whole, DType.LONG), ranges("source", nobody, needed),
        )
        sizes = np.stack((end - begin, lead, whole, needed, bases.counts(), masks.counts()), 1)

        def code(sizes: Sizes) -> Graph:
            count, lead, whole, needed, old_count, mask_count = sizes
            written = Code()
            base, chosen = written.given(old.dtype, old_count), written.given(mask.dtype, mask_count)
            counts, values = written.given(DType.LONG, whole), written.given(source.dtype, needed)
            if mask_count != lead + count:
                chosen = written.run(
                    "aten.expand.default", [(mask.dtype, (lead + count,))], {"size": [lead + count]}, self=chosen,
                )[0]
            number = written.run(
                "aten.cumsum.default", [(DType.LONG, (lead + count,))], {"dim": 0, "dtype": DType.LONG}, self=chosen,
            )[0]
            if lead:
                number, chosen = (_behind(written, one, lead) for one in (number, chosen))
            place = written.binary("sub", written.binary("add", number, _total(written, counts)), 1)
            place = written.run(
                "aten.clamp.default", [(DType.LONG, place.shape)], {"min": 0, "max": max(needed - 1, 0)}, self=place,
            )[0]
            found = written.run(
                "aten.index_select.default", [(source.dtype, place.shape)], {"dim": 0}, self=values, index=place,
            )[0]
            return written.graph([written.chosen(chosen, found, base, result.dtype)])

        return VertexSet(tiles, reads, (ranges("out", begin, end),), sizes, code)

    return tiling


def _behind(code: Code, value: Tensor, lead: int) -> Tensor:
    """Return what follows the first elements of a value."""
    attrs: dict[str, object] = {"dim": 0, "start": lead, "end": value.shape[0], "step": 1}
    return code.run("aten.slice.Tensor", [(value.dtype, (value.shape[0] - lead,))], attrs, self=value)[0]
