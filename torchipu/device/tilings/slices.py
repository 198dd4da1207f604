"""Compute sets whose vertices run the op itself on slices: of the operands what a block of the result is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from torchipu.device.tilings.blocks import blocks
from torchipu.device.tilings.code import Code
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region
from torchipu.ir.vertices import Sizes, Tiling, VertexSet, local, one_a_run

Range = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """What vertices share out.

    Attributes:
        size: How many there are.
        dims: The dimension of each operand and result that lies along it, and its elements for each of them.
    """

    size: int
    dims: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Slicing:
    """How an op is cut up.

    Attributes:
        axes: What vertices share out.
        results: Numbers of the results that they write.
        attrs: ``ranges of the axes -> arguments`` that differ for a part of the op.
        ends: Label of an operand that names positions along the first axis, where groups of them end.
    """

    axes: Sequence[Axis]
    results: Sequence[int] = (0,)
    attrs: Callable[[Sequence[Range]], Mapping[str, object]] = field(default=lambda ranges: {})
    ends: str | None = None


def sliced(slicing_of: Callable[[Op], Slicing]) -> Tiling:
    """Return the tiling of an op that is computed block by block.

    Args:
        slicing_of: Says how.
    """

    def tiling(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        slicing = slicing_of(op)
        tiles, _, _ = one_a_run(runs)
        splits = _splits([axis.size for axis in slicing.axes], len(tiles))
        digits = np.stack(np.unravel_index(np.arange(prod(splits)), splits), axis=1)
        keys = [
            tuple((int(at * axis.size // split), int((at + 1) * axis.size // split))
                  for at, axis, split in zip(row, slicing.axes, splits, strict=True))
            for row in digits.tolist()
        ]
        distinct = {
            tensor: label for label, tensor in reversed(list(zip(operand_labels(op), op.inputs, strict=True)))
        }
        named = [("out" if number == 0 else f"out{number}", op.outputs[number]) for number in slicing.results]
        reads = tuple(_region(label, tensor, slicing, keys) for tensor, label in distinct.items())
        writes = tuple(_region(label, tensor, slicing, keys) for label, tensor in named)

        def code(sizes: Sizes) -> Graph:
            bounds = list(zip(sizes[::2], sizes[1::2], strict=True))
            return _code(op, slicing, distinct, bounds)

        return VertexSet(tiles[: len(keys)], reads, writes, np.array(keys, np.int64).reshape(len(keys), -1), code)

    return tiling


def _splits(sizes: Sequence[int], tiles: int) -> list[int]:
    """Return by how many vertices each axis is shared: the longest piece is cut until there is one for each tile."""
    splits = [1] * len(sizes)
    while True:
        wanted = [
            (size / split, place) for place, (size, split) in enumerate(zip(sizes, splits, strict=True))
            if split < size and prod(splits) // split * (split + 1) <= tiles
        ]
        if not wanted:
            return splits
        splits[max(wanted)[1]] += 1


def _region(label: str, tensor: Tensor, slicing: Slicing, keys: Sequence[tuple[Range, ...]]) -> Region:
    return blocks(label, [_bounds(label, tensor, slicing, key) for key in keys], lambda box: _elements(tensor, box))


def _bounds(label: str, tensor: Tensor, slicing: Slicing, ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Return which part of each dimension of a value goes with ranges of the axes."""
    found = [(0, size) for size in tensor.shape]
    for axis, (begin, end) in zip(slicing.axes, ranges, strict=True):
        if label in axis.dims:
            dim, each = axis.dims[label]
            found[dim] = begin * each, end * each
    return tuple(found)


def _elements(tensor: Tensor, box: tuple[Range, ...]) -> Numbers:
    total = np.zeros(1, np.int64)
    for place, (begin, end) in enumerate(box):
        step = prod(tensor.shape[place + 1 :])
        total = (total[:, None] + np.arange(begin, end, dtype=np.int64) * step).reshape(-1)
    return total


def _code(op: Op, slicing: Slicing, distinct: Mapping[Tensor, str], bounds: Sequence[Range]) -> Graph:
    """Return the op on slices; ends are those of positions that a vertex has."""

    def part(label: str, tensor: Tensor, name: str) -> Tensor:
        return local(tensor, *(end - begin for begin, end in _bounds(label, tensor, slicing, bounds)), name=name)

    given = {tensor: part(label, tensor, label) for tensor, label in distinct.items()}
    held, written = dict(given), Code()
    for tensor, label in distinct.items():
        begin, end = bounds[0]
        if label == slicing.ends and (begin, end) != (0, slicing.axes[0].size):
            clamped = written.run(
                "aten.clamp.default", [(tensor.dtype, tensor.shape)], {"min": begin, "max": end}, self=given[tensor],
            )[0]
            held[tensor] = written.binary("sub", clamped, begin)
    made = tuple(
        part("out" if number == 0 else f"out{number}", tensor, f"made{number}")
        for number, tensor in enumerate(op.outputs)
    )
    inner = replace(
        op, inputs=tuple(held[tensor] for tensor in op.inputs), outputs=made,
        attrs={**op.attrs, **slicing.attrs(bounds)},
    )
    return Graph(
        "vertex", tuple(given.values()), tuple(made[number] for number in slicing.results), (*written.ops, inner),
    )
