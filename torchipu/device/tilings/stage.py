"""Compute sets of a chain whose vertices handle each element, or each row, apart from all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, everything, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, one_a_run


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What vertices read or write of one value.

    Attributes:
        name: Label of an operand or result, or name of a partial.
        dtype: Its element type.
        index: ``[iteration space]``, which of its elements goes with each; None for the same one.
        whole: How many elements it has, where each vertex reads all of them; 0 otherwise.
        is_partial: Whether it is no operand and no result.
    """

    name: str
    dtype: DType
    index: Numbers | None = None
    whole: int = 0
    is_partial: bool = False

    def region(self, begin: Numbers, end: Numbers) -> Region:
        """Return the region of vertices that each handle one range of the iteration space."""
        dtype = self.dtype if self.is_partial else None
        if self.whole:
            return everything(self.name, self.whole, len(begin))
        if self.index is None:
            return ranges(self.name, begin, end, dtype)
        return listed(self.name, _picked(self.index, begin, end), end - begin, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One compute set of a chain.

    Attributes:
        reads: What its vertices read.
        writes: What they write, element by element of the iteration space.
        code: Computes the latter of the former: all are ``[n]``, but what is read whole.
    """

    reads: Sequence[Taken]
    writes: Sequence[Taken]
    code: Callable[[Code, list[Tensor]], Sequence[Tensor]]


def operand(op: Op, name: str, index: Numbers | None = None) -> Taken:
    """Return the reading of an operand; one of a single element is read by every vertex."""
    tensor = op.needed(name)
    is_single = tensor.num_elements == 1
    label = f"given.{name}" if name.startswith("out") else name  # see operand_labels
    return Taken(label, tensor.dtype, None if is_single else index, whole=int(is_single))


def partial_of(name: str, index: Numbers | None = None, dtype: DType = DType.FLOAT) -> Taken:
    """Return the reading or writing of a partial."""
    return Taken(name, dtype, index, is_partial=True)


def result(op: Op, number: int = 0) -> Taken:
    """Return the writing of a result."""
    return Taken("out" if number == 0 else f"out{number}", op.outputs[number].dtype)


def staged(stage: Callable[[Op], Stage | None]) -> Tiling:
    """Return the tiling of a set with a vertex for each run.

    Args:
        stage: What it computes; None where an op of these arguments leaves it nothing to do.
    """

    def tiling(op: Op, runs: TileMapping, part: int) -> VertexSet | None:
        made = stage(op)
        if made is None:
            return None
        tiles, begin, end = one_a_run(runs)

        def code(sizes: Sizes) -> Graph:
            written = Code()
            values = [
                written.given(one.dtype, *((one.whole,) if one.whole else (sizes[0],))) for one in made.reads
            ]
            return written.graph(made.code(written, values))

        reads = tuple(one.region(begin, end) for one in made.reads)
        writes = tuple(one.region(begin, end) for one in made.writes)
        return VertexSet(tiles, reads, writes, (end - begin).reshape(-1, 1), code)

    return tiling


def _picked(index: Numbers, begin: Numbers, end: Numbers) -> Numbers:
    """Return the entries of all ranges, one range behind the other."""
    if np.array_equal(begin[1:], end[:-1]):
        return index[int(begin[0]) if len(begin) else 0 : int(end[-1]) if len(end) else 0]
    return np.concatenate([index[low:high] for low, high in zip(begin, end, strict=True)])
