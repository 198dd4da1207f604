"""Compute sets that move elements and compute nothing of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from torchipu._kernels.abi import run_vertices
from torchipu.device.tiles.kernels import tile_kernel
from torchipu.device.tilings.code import Code
from torchipu.device.tilings.fills import constant
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import PAD, Numbers, listed
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, VertexSet, code_of, one_a_run


# --------------------------------------------------------------------------- where elements come from
def moves_of(op: Op) -> list[Numbers]:
    """Return for each result which element each of its own is: counted over all operands, or `PAD`.

    An op that only moves elements moves their numbers likewise, so that its own kernel tells where they come from.

    Args:
        op: The op.
    """
    numbers, first = [], 1  # zero is what an op fills in by itself
    for tensor in op.inputs:
        numbers.append(np.arange(first, first + tensor.num_elements, dtype=np.int32))
        first += tensor.num_elements
    attrs = {**op.attrs, "value": 0} if "value" in op.attrs else op.attrs
    results = _computed(replace(_of_numbers(op), attrs=attrs), numbers)
    return [result.astype(np.int64) - 1 for result in results]


def _of_numbers(op: Op) -> Op:
    """Return the op on whole numbers of the same shapes."""
    inputs, outputs = (
        tuple(Tensor(f"{side}{place}", tensor.shape, DType.INT) for place, tensor in enumerate(tensors))
        for side, tensors in (("in", op.inputs), ("out", op.outputs))
    )
    return replace(op, inputs=inputs, outputs=outputs)


def _computed(op: Op, operands: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
    """Return what the tile kernel of an op on whole numbers makes of them."""
    kernel = tile_kernel(code_of(op))
    results = [np.zeros(max(1, tensor.num_elements), np.int32) for tensor in op.outputs]
    scratch = np.zeros(kernel.scratch_bytes + 64, np.uint8)
    for offset, values, dtype in kernel.constants:
        kept = np.array(values, np.int64 if dtype is DType.LONG else np.int32)
        scratch[offset : offset + kept.nbytes] = kept.view(np.uint8)
    fields = [value if value.size else np.zeros(1, np.int32) for value in (*operands, *results)]
    bases = [*(field.ctypes.data for field in fields), scratch.ctypes.data]
    places = [bases[argument.field] + argument.offset for argument in kernel.arguments]
    run_vertices(kernel.calls, np.array([places], np.int64))
    return [result[: tensor.num_elements] for result, tensor in zip(results, op.outputs, strict=True)]


# --------------------------------------------------------------------------- one set
def moved(op: Op, runs: TileMapping, part: int = 0, *, result: int = 0) -> VertexSet:
    """Return one vertex for each run of a result, which reads what it is made of and writes it in order.

    What comes from several operands is read as several regions, each written where it belongs.

    Args:
        op: An op that only moves elements, or fills in zeros or its ``value``.
        runs: Of the result.
        part: The only one.
        result: Which one.
    """
    tiles, begin, end = one_a_run(runs)
    label = f"out{result}" if result else "out"
    sources, places = _within(moves_of(op)[result], begin, end), _within(None, begin, end)
    vertex = np.repeat(np.arange(len(tiles)), end - begin)
    pad = float(op.number("value", 0))
    reads, writes, tensors = [], [], []
    for tensor, name, mine, first in _by_operand(op, sources):
        counts = np.bincount(vertex[mine], minlength=len(tiles))
        elements = np.where(sources[mine] == PAD, PAD, sources[mine] - first)
        reads.append(listed(name, elements, counts, pad=pad))
        writes.append(listed(label, places[mine], counts))
        tensors.append(tensor)
    sizes = np.stack([region.counts() for region in reads], 1)
    made = op.outputs[result]
    return VertexSet(tiles, tuple(reads), tuple(writes), sizes, lambda sizes: copies(tensors, made, sizes))


def _within(values: Numbers | None, begin: Numbers, end: Numbers) -> Numbers:
    """Return the values of all elements of runs, or the numbers of these elements."""
    starts = np.cumsum(end - begin) - (end - begin)
    places = np.arange((end - begin).sum(), dtype=np.int64) + np.repeat(begin - starts, end - begin)
    return places if values is None else values[places]


def _by_operand(op: Op, sources: Numbers) -> list[tuple[Tensor, str, Numbers, int]]:
    """Return the operands that elements come from: tensor, label, which elements, and the number of its first one.

    What comes from nowhere goes with the first of them.
    """
    ends = np.cumsum([tensor.num_elements for tensor in op.inputs])
    owner = np.searchsorted(ends, sources, side="right")
    owner[sources == PAD] = owner[sources != PAD].min(initial=len(op.inputs)) % len(op.inputs)
    found = []
    for place, (tensor, label) in enumerate(zip(op.inputs, operand_labels(op), strict=True)):
        mine = owner == place
        if mine.any():
            found.append((tensor, label, mine, int(ends[place]) - tensor.num_elements))
    return found


def copies(tensors: Sequence[Tensor], result: Tensor, sizes: Sizes) -> Graph:
    """Return code that copies so many elements of each operand, in the type of the result."""
    code = Code()
    given = [code.part(tensor, count) for tensor, count in zip(tensors, sizes, strict=True)]
    return code.graph([code.copied(value, result.dtype) for value in given])


# --------------------------------------------------------------------------- zeros, then a copy into part of them
def around(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return the vertices that fill in zeros where ``put_in`` copies nothing.

    Args:
        op: Copies one operand into part of its result; elements go to one place each.
        runs: Of the result.
        part: The only one.
    """
    tiles, begin, end = one_a_run(runs)
    is_empty = _within(moves_of(op)[0], begin, end) == PAD
    counts = np.bincount(np.repeat(np.arange(len(tiles)), end - begin)[is_empty], minlength=len(tiles))
    write = listed("out", _within(None, begin, end)[is_empty], counts)
    result = op.outputs[0]
    return VertexSet(tiles, (), (write,), counts.reshape(-1, 1), lambda sizes: constant(result, sizes[0], 0))


def put_in(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return one vertex for each run of the operand, which copies it to where it belongs; see ``around``."""
    tiles, begin, end = one_a_run(runs)
    sources = moves_of(op)[0]
    places = np.full(op.inputs[0].num_elements, PAD, np.int64)
    places[sources[sources != PAD]] = np.flatnonzero(sources != PAD)
    elements, going = _within(None, begin, end), _within(places, begin, end)
    counts = np.bincount(np.repeat(np.arange(len(tiles)), end - begin)[going != PAD], minlength=len(tiles))
    read = listed(operand_labels(op)[0], elements[going != PAD], counts)
    write = listed("out", going[going != PAD], counts)
    return VertexSet(
        tiles, (read,), (write,), counts.reshape(-1, 1),
        lambda sizes: copies(op.inputs[:1], op.outputs[0], sizes),
    )
