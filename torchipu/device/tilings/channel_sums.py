"""Sums over all but the channels, which vertices of other sets work out beside what they do: gradients of biases."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Graph, Op, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import PAD, Numbers, Region, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, Tiling, VertexSet

SUMS = "sums of channels"


@dataclass(frozen=True, slots=True)
class ChannelSums:
    """A sum of ``[samples, channels, places]`` over samples and places.

    Attributes:
        operand: Label of what is summed up.
        number: Of the result.
        samples: Samples.
        channels: Channels.
        places: Places.
        shares: Into how many runs the summands of a channel are cut up, which are added up by a later set.
    """

    operand: str
    number: int
    samples: int
    channels: int
    places: int
    shares: int = 1

    @property
    def run(self) -> int:
        """Summands of a channel that one vertex takes."""
        return ceil_div(self.samples * self.places, self.shares)

    @property
    def runs(self) -> int:
        """How many runs a channel has."""
        return ceil_div(self.samples * self.places, self.run)

    def first(self, tiling: Tiling) -> Tiling:
        """Return a tiling whose vertices also sum up the runs of each channel: to results, or to partials."""

        def both(op: Op, runs: TileMapping, part: int) -> VertexSet | None:
            vertices = tiling(op, runs, part)
            if vertices is None:
                return None
            if part:
                return _with_none(vertices)
            begin, end = _dealt(self.channels * self.runs, len(vertices.tiles))
            given = op.inputs[operand_labels(op).index(self.operand)]
            if self.runs == 1:
                write = ranges(self._result, begin, end)
                return _beside(vertices, self._summands(begin, end), write, self.run, given.dtype, self._dtype(op))
            write = ranges(SUMS, begin, end, DType.FLOAT)
            return _beside(vertices, self._summands(begin, end), write, self.run, given.dtype, DType.FLOAT)

        return both

    def last(self, tiling: Tiling) -> Tiling:
        """Return a tiling whose vertices also add up the partials of each channel."""

        def both(op: Op, runs: TileMapping, part: int) -> VertexSet | None:
            vertices = tiling(op, runs, part)
            if vertices is None or self.runs == 1:
                return vertices
            if part:
                return _with_none(vertices)
            begin, end = _dealt(self.channels, len(vertices.tiles))
            read = ranges(SUMS, begin * self.runs, end * self.runs, DType.FLOAT)
            return _beside(
                vertices, read, ranges(self._result, begin, end), self.runs, DType.FLOAT, self._dtype(op),
            )

        return both

    @property
    def _result(self) -> str:
        return f"out{self.number}" if self.number else "out"

    def _dtype(self, op: Op) -> DType:
        return op.outputs[self.number].dtype

    def _summands(self, begin: Numbers, end: Numbers) -> Region:
        """Return what is summed up in runs from one to another; a channel's last run is filled up with zeros."""
        channel, number = np.divmod(np.arange(self.channels * self.runs, dtype=np.int64), self.runs)
        summand = number[:, None] * self.run + np.arange(self.run, dtype=np.int64)
        sample, place = np.divmod(summand, self.places)
        elements = (sample * self.channels + channel[:, None]) * self.places + place
        elements[summand >= self.samples * self.places] = PAD
        return listed(self.operand, elements, (end - begin) * self.run)


def _dealt(items: int, vertices: int) -> tuple[Numbers, Numbers]:
    """Return the first of the items that each vertex takes, and that after its last."""
    share = ceil_div(items, vertices)
    begin = np.minimum(np.arange(vertices, dtype=np.int64) * share, items)
    return begin, np.minimum(begin + share, items)


def _with_none(vertices: VertexSet) -> VertexSet:
    """Return vertices of a later run, whose sizes say that they sum up nothing: their code is not that of the first."""
    sizes = np.pad(vertices.sizes, ((0, 0), (0, 1)), constant_values=-1)
    return replace(vertices, sizes=sizes, code=lambda sizes: vertices.code(sizes[:-1]))


def _beside(
    vertices: VertexSet, read: Region, write: Region, summands: int, dtype: DType, result: DType,
) -> VertexSet:
    """Return vertices that also sum up ``summands`` for each element that they write."""
    count = write.counts()

    def code(sizes: Sizes) -> Graph:
        *inner, sums = sizes
        graph = vertices.code(tuple(inner))
        written = Code(graph)
        if not sums:  # nothing comes of nothing
            return written.graph([*graph.outputs, written.given(dtype, 0)])
        given = written.given(dtype, sums, summands)
        return written.graph([*graph.outputs, written.summed(given, result, keepdim=False)])

    return VertexSet(
        vertices.tiles, (*vertices.reads, read), (*vertices.writes, write),
        np.concatenate((vertices.sizes, count.reshape(-1, 1)), axis=1), code,
    )
