"""Compute sets whose results are weighted sums of a few elements each, known from the sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.fills import constant
from torchipu.device.tilings.moves import copies, moves_of
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import PAD, Numbers, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, VertexSet, one_a_run

WEIGHTED_SUM = "ipu.weighted_sum.default"
"""``[results, terms] -> [results]``: sums of terms times ``weights``, of all terms in order; plain sums without."""


def weighted_sum(code: Code, terms: Tensor, dtype: DType, weights: Sequence[float] = ()) -> Graph:
    """Return code that adds the terms of each result up."""
    attrs: dict[str, object] = {"weights": tuple(weights)} if weights else {}
    return code.graph(code.run(WEIGHTED_SUM, [(dtype, terms.shape[:1])], attrs, self=terms))


# --------------------------------------------------------------------------- maps along one dimension
@dataclass(frozen=True, slots=True, eq=False)
class Along:
    """A linear map along one dimension.

    Attributes:
        shape: Of what is mapped.
        dim: The dimension.
        rows: For each place of the result the places and weights that it sums.
        read: Label of the operand, or name of the partials.
        written: ``out``, or name of the partials.
    """

    shape: tuple[int, ...]
    dim: int
    rows: tuple[tuple[tuple[int, float], ...], ...]
    read: str
    written: str


def mapped_along(step: Along) -> Callable[[Op, TileMapping, int], VertexSet]:
    """Return the tiling of a map along a dimension: one vertex for each run of its result.

    Each reads the terms of its sums one behind the other, as many of each, with zeros where a sum has fewer.

    Args:
        step: The map.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        tiles, begin, end = one_a_run(runs)
        width = max(1, *map(len, step.rows))
        places, weights = _tables(step, width)
        length, inner = step.shape[step.dim], prod(step.shape[step.dim + 1 :])
        elements = np.arange(prod(step.shape[: step.dim]) * len(step.rows) * inner)
        outer, row = np.divmod(elements // inner, len(step.rows))
        terms = (outer[:, None] * length + places[row]) * inner + (elements % inner)[:, None]
        terms[places[row] == PAD] = PAD
        read = listed(step.read, terms, (end - begin) * width)
        partial = DType.FLOAT if step.written != "out" else None
        result, source = op.outputs[0], op.inputs[0]
        dtype, given = partial or result.dtype, source.dtype if step.read in operand_labels(op) else DType.FLOAT
        known = _Patterns()
        sizes = np.array([
            (count, known.number(weights[rows]))
            for count, rows in zip((end - begin).tolist(), np.split(row, end[:-1]), strict=True)
        ], np.int64).reshape(-1, 2)

        def code(sizes: Sizes) -> Graph:
            count, pattern = sizes
            written = Code()
            return weighted_sum(written, written.given(given, count, width), dtype, known.weights(pattern))

        return VertexSet(tiles, (read,), (ranges(step.written, begin, end, partial),), sizes, code)

    return tiling


def _tables(step: Along, width: int) -> tuple[Numbers, NDArray[np.float64]]:
    """Return the places and weights that each row of a map sums, as ``[rows, width]``."""
    places = np.full((len(step.rows), width), PAD, np.int64)
    weights = np.zeros((len(step.rows), width))
    for number, row in enumerate(step.rows):
        for column, (place, weight) in enumerate(row):
            places[number, column], weights[number, column] = place, weight
    return places, weights


class _Patterns:
    """Weights that vertices have, by number; those that differ in nothing have the same."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._weights: list[tuple[float, ...]] = []

    def number(self, weights: NDArray[np.float64]) -> int:
        """Return the number of weights."""
        key = weights.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._weights)
            self._weights.append(tuple(weights.reshape(-1).tolist()))
        return self._numbers[key]

    def weights(self, number: int) -> tuple[float, ...]:
        """Return the weights that have a number."""
        return self._weights[number]


# --------------------------------------------------------------------------- windows that overlap
MOVED = "moved"
"""Partials: the elements of windows in the order in which they are added up."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Which elements of an operand each element of the result sums.

    Attributes:
        terms: Elements of the operand, those of one result behind each other.
        results: Elements of the result that sum any.
        first: ``[results + 1]``, the first term of each.
    """

    terms: Numbers
    results: Numbers
    first: Numbers


def _sums_of(windows: Op) -> _Sums:
    """Return the sums that undo an op that moves elements, some of them to several places."""
    going = moves_of(windows)[0]
    terms = np.argsort(going, kind="stable")[np.count_nonzero(going == PAD) :]
    results, first = np.unique(going[terms], return_index=True)
    return _Sums(terms, results, np.append(first, len(terms)))


def overlaps(windows_of: Callable[[Op], Op]) -> tuple[Callable[[Op, TileMapping, int], VertexSet], ...]:
    """Return the tilings of sums of windows that overlap.

    Zeros where there is nothing to add, an exchange that brings what is added together, and the additions.

    Args:
        windows_of: Gives the op that takes windows of the result, of which an op is the gradient.
    """

    def filled(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        tiles, begin, end = one_a_run(runs)
        is_empty = np.ones(op.outputs[0].num_elements, bool)
        is_empty[_sums_of(windows_of(op)).results] = False
        empty = np.flatnonzero(is_empty)
        low, high = np.searchsorted(empty, begin), np.searchsorted(empty, end)
        return VertexSet(
            tiles, (), (listed("out", empty, high - low),), (high - low).reshape(-1, 1),
            lambda sizes: constant(op.outputs[0], sizes[0], 0),
        )

    def brought(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        tiles, begin, end = one_a_run(runs)
        sums, source = _sums_of(windows_of(op)), op.inputs[0]
        begin, end = (np.minimum(border, len(sums.terms)) for border in (begin, end))

        read = listed(operand_labels(op)[0], sums.terms, end - begin)
        return VertexSet(
            tiles, (read,), (ranges(MOVED, begin, end, source.dtype),), (end - begin).reshape(-1, 1),
            lambda sizes: copies([source], source, sizes),
        )

    def added(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        tiles, begin, end = one_a_run(runs)
        sums, source, result = _sums_of(windows_of(op)), op.inputs[0], op.outputs[0]
        low, high = np.searchsorted(sums.first[:-1], begin), np.searchsorted(sums.first[:-1], end)
        counts = np.diff(sums.first)
        width = int(counts.max(initial=1))
        terms = sums.first[:-1, None] + np.arange(width)
        terms[np.arange(width) >= counts[:, None]] = PAD

        def code(sizes: Sizes) -> Graph:
            written = Code()
            return weighted_sum(written, written.part(source, sizes[0], width), result.dtype)

        read = listed(MOVED, terms, (high - low) * width, source.dtype)
        return VertexSet(tiles, (read,), (listed("out", sums.results, high - low),), (high - low).reshape(-1, 1), code)

    return filled, brought, added
