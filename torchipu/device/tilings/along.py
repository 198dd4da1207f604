"""Compute sets whose vertices handle whole rows of a value along a dimension."""

from __future__ import annotations

from collections.abc import Callable

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.reduction import rows_along, shared_out
from torchipu.ir.graph import Graph, Op, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import listed
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run


def whole_rows(split: Callable[[Op], tuple[int, int, int]]) -> Tiling:
    """Return the tiling of an op of one operand that makes a row of each row of it: the op itself, on some rows.

    Rows are shared out over the tiles of the result: what comes of an element depends on others of its row.

    Args:
        split: Gives the sizes before, of and after the dimension that the op goes along.
    """

    def tiling(op: Op, runs: TileMapping, part: int) -> VertexSet:
        table = rows_along(split(op))
        rows, length = table.shape
        tiles, begin, end = one_a_run(shared_out(runs, rows))
        elements, counts = table.reshape(-1), (end - begin) * length

        def code(sizes: Sizes) -> Graph:
            written, shape = Code(), (sizes[0], length)
            given = written.part(op.inputs[0], *shape)
            return written.graph(written.again(op, [given], *[shape] * len(op.outputs), dim=1))

        names = ("out" if number == 0 else f"out{number}" for number in range(len(op.outputs)))
        return VertexSet(
            tiles, (listed(operand_labels(op)[0], elements, counts),),
            tuple(listed(name, elements, counts) for name in names), (end - begin).reshape(-1, 1),
            code,
        )

    return tiling
