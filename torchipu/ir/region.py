"""Which elements of a value the vertices of a compute set touch, as runs with a stride, vertex by vertex."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchipu.ir.types import DType

Numbers: TypeAlias = NDArray[np.int64]

PAD = -1
"""The element that no value has: it stands for what lies around it, such as the padding of a convolution."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Elements of a value that the vertices of a compute set read or write, in the order in which they take them.

    Attributes:
        name: Label of the operand or result (see ``operand_labels``; results are ``out``, ``out1`` ...), or any other
            name for what the compute sets of an op hand on to each other: partials. The first set that writes partials
            makes them; they are numbered as it writes them and lie on the tiles of its vertices.
        begin: ``[runs]``, the first element of each run, by its place in the value as row-major memory has it; `PAD`
            for what lies around the value.
        count: ``[runs]``, how many elements it has.
        stride: ``[runs]``, elements from one of them to the next.
        first: ``[vertices + 1]``, the first run of each vertex.
        dtype: Element type of partials; None for operands and results, which have their own.
        pad: What `PAD` reads as.
    """

    name: str
    begin: Numbers
    count: Numbers
    stride: Numbers
    first: Numbers
    dtype: DType | None = None
    pad: float = 0.0

    @property
    def num_vertices(self) -> int:
        """How many vertices there are."""
        return len(self.first) - 1

    def counts(self) -> Numbers:
        """Return how many elements each vertex touches: ``[vertices]``."""
        ends = np.concatenate(([0], np.cumsum(self.count)))[self.first]
        return np.diff(ends)

    def elements(self) -> Numbers:
        """Return all elements, vertex by vertex."""
        total = int(self.count.sum())
        starts = np.cumsum(self.count) - self.count
        within = np.arange(total, dtype=np.int64) - np.repeat(starts, self.count)
        return np.repeat(self.begin, self.count) + np.repeat(self.stride, self.count) * within


def ranges(
    name: str, begin: Numbers | Sequence[int], end: Numbers | Sequence[int], dtype: DType | None = None,
) -> Region:
    """Return a region in which each vertex touches one range of elements.

    Args:
        name: Of the value.
        begin: ``[vertices]``.
        end: ``[vertices]``, after the last element.
        dtype: Of partials.
    """
    low, high = np.asarray(begin, np.int64), np.asarray(end, np.int64)
    return Region(name, low, high - low, np.ones_like(low), np.arange(len(low) + 1, dtype=np.int64), dtype)


def everything(name: str, num_elements: int, num_vertices: int) -> Region:
    """Return a region in which each vertex touches all elements of a value."""
    return ranges(name, np.zeros(num_vertices, np.int64), np.full(num_vertices, num_elements, np.int64))


def in_turn(name: str, counts: Numbers | Sequence[int], dtype: DType | None = None) -> Region:
    """Return a region in which vertices touch so many elements each, one vertex behind the other."""
    ends = np.cumsum(np.asarray(counts, np.int64))
    return ranges(name, ends - counts, ends, dtype)


def listed(
    name: str, elements: Numbers, counts: Numbers | Sequence[int], dtype: DType | None = None, pad: float = 0.0,
) -> Region:
    """Return a region of elements that are listed one by one.

    Args:
        name: Of the value.
        elements: All of them, vertex by vertex, with `PAD` for what lies around the value.
        counts: ``[vertices]``, how many of them each vertex touches.
        dtype: Of partials.
        pad: What `PAD` reads as.
    """
    elements = np.asarray(elements, np.int64).reshape(-1)
    counts = np.asarray(counts, np.int64)
    borders = np.concatenate(([0], np.cumsum(counts)))
    if borders[-1] != len(elements):
        raise ValueError(f"the region of {name!r} lists {len(elements)} elements, and counts {borders[-1]}")
    heads = _heads(elements, borders)
    count = np.diff(np.concatenate((heads, [len(elements)])))
    begin = elements[heads]
    following = np.minimum(heads + 1, max(len(elements) - 1, 0))
    stride = np.where(count > 1, elements[following] - begin, 1)
    return Region(name, begin, count, stride, np.searchsorted(heads, borders).astype(np.int64), dtype, pad)


def distinct(elements: Numbers) -> Numbers:
    """Return the elements in order, each once."""
    ordered = np.sort(elements)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def are_distinct(elements: Numbers) -> bool:
    """Whether no element is there twice."""
    ordered = np.sort(elements)
    return not (ordered[1:] == ordered[:-1]).any()


def _heads(elements: Numbers, borders: Numbers) -> Numbers:
    """Return where runs of equal stride begin; neighbours by one always go together."""
    if not len(elements):
        return np.zeros(0, np.int64)
    step = np.diff(elements)
    joins = np.zeros(len(elements) + 1, bool)  # element i goes on with what i - 1 is in
    alike = step[1:] == step[:-1]
    joins[1:-1] = step == 1
    joins[2:-1] |= alike
    joins[1:-2] |= alike
    is_head = ~joins[:-1]
    is_head[2:] |= joins[1:-2] & ~alike
    is_head[borders[:-1][np.diff(borders) > 0]] = True
    return np.flatnonzero(is_head).astype(np.int64)
