"""Vertices of an op, one by one, on numpy arrays: what their regions and their code say, with nothing in between."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchipu._kernels.abi import run_vertices
from torchipu.device.tiles.kernels import TileKernel, tile_kernel
from torchipu.device.tiles.layout import BITS, is_wide
from torchipu.emulation.eager import computed
from torchipu.emulation.own_ops import OWN
from torchipu.ir.graph import Graph, Op, operand_labels
from torchipu.ir.program import Execute, VertexGroup, leaves_of
from torchipu.ir.region import PAD, Region, are_distinct
from torchipu.ir.types import DType
from torchipu.ir.vertices import VertexSet

FLOATS = (DType.HALF, DType.FLOAT)


def groups_of(executable: Any) -> list[VertexGroup]:
    """Return the vertex groups of all functions, in order."""
    return [
        group for function in executable.functions.values() for leaf in leaves_of(function)
        if isinstance(leaf, Execute) for group in leaf.compute_set.groups
    ]


class Simulated:
    """The compute sets of one op.

    Args:
        op: The op.
        operands: Values of its inputs; floats are float64, or the types of tile memory where ``kernels`` run.
        kernels: Whether the tile kernels compute, not PyTorch.
    """

    def __init__(self, op: Op, operands: Sequence[np.ndarray], *, kernels: bool = False) -> None:
        self.op, self.kernels = op, kernels
        labels = operand_labels(op)
        self.values = {label: np.asarray(value).reshape(-1) for label, value in zip(labels, operands, strict=True)}
        self.results = {("out" if k == 0 else f"out{k}"): tensor for k, tensor in enumerate(op.outputs)}
        self.written: dict[str, np.ndarray] = {}
        self.partials: dict[str, int] = {}
        self.codes: dict[tuple[int, tuple[int, ...]], tuple[Graph, TileKernel | None]] = {}

    def run(self, vertices: VertexSet, number: int) -> None:
        """Run the vertices of a set, which has a number; those of the same sizes share their code, in all its runs."""
        reads = [self._read(region) for region in vertices.reads]
        made = [self._begin(region) for region in vertices.writes]
        counts = [region.counts() for region in (*vertices.reads, *vertices.writes)]
        starts = [np.cumsum(count) - count for count in counts]
        rows, which = np.unique(vertices.sizes, axis=0, return_inverse=True)
        for row, sizes in enumerate(map(tuple, rows.tolist())):
            alike = np.flatnonzero(which.reshape(-1) == row)
            if (number, sizes) not in self.codes:
                code = vertices.code(sizes)
                self.codes[number, sizes] = code, tile_kernel(code) if self.kernels else None
            code, kernel = self.codes[number, sizes]
            assert (len(code.inputs), len(code.outputs)) == (len(vertices.reads), len(vertices.writes))
            places = []
            for tensor, count, start in zip((*code.inputs, *code.outputs), counts, starts, strict=True):
                assert (count[alike] == tensor.num_elements).all(), f"{tensor}: other numbers of elements are given"
                places.append(start[alike][:, None] + np.arange(tensor.num_elements))
            given = [value[place] for value, place in zip(reads, places, strict=False)]
            results = (
                self._by_torch(code, given, len(alike)) if kernel is None
                else self._by_kernel(code, kernel, given, len(alike))
            )
            for (name, elements), value, place in zip(made, results, places[len(reads) :], strict=True):
                assert value.size == place.size, f"{name}: {value.size} made, {place.size} wanted"
                self.values[name][elements[place]] = value.reshape(place.shape)
                self.written[name][elements[place]] += 1
        for region in vertices.writes:
            # A vertex may write again what it has itself written for an earlier part.
            assert region.name in self.partials or (self.written[region.name] <= 1).all(), f"{region.name}: twice"

    def outputs(self) -> list[np.ndarray]:
        """Return the results, of which every element must have been written."""
        for name, tensor in self.results.items():
            if not tensor.num_elements:
                self.values[name] = np.zeros(0)
                continue
            assert self.written[name].all(), f"{name}: {np.flatnonzero(self.written[name] == 0)[:5]} not written"
        return [self.values[name].reshape(tensor.shape) for name, tensor in self.results.items()]

    def _read(self, region: Region) -> np.ndarray:
        elements = region.elements()
        if region.name in self.partials:
            assert self.written[region.name][elements].all(), f"{region.name}: reads what nobody has written"
        value = self.values[region.name]
        assert elements.max(initial=-1) < value.size
        assert elements.min(initial=0) >= PAD
        padded = np.append(value, np.array(region.pad).astype(value.dtype))
        return padded[elements]

    def _begin(self, region: Region) -> tuple[str, np.ndarray]:
        elements = region.elements()
        if region.name not in self.written:
            tensor = self.results.get(region.name)
            if tensor is None:
                assert region.dtype is not None, f"partials {region.name} have no type"
                self.partials[region.name] = int(elements.max(initial=-1)) + 1
            size = tensor.num_elements if tensor is not None else self.partials[region.name]
            dtype = tensor.dtype if tensor is not None else region.dtype
            assert dtype is not None
            is_sum = tensor is not None and is_wide(tensor) and tensor.num_elements == 1
            kind = BITS[dtype] if self.kernels else np.float64 if dtype in FLOATS or is_sum else np.int64
            self.values[region.name] = np.zeros(size, kind)
            self.written[region.name] = np.zeros(size, np.int64)
        if region.name in self.partials:
            self._grow(region.name, int(elements.max(initial=-1)) + 1)
        assert are_distinct(elements), f"{region.name}: two vertices write the same element"
        return region.name, elements

    def _grow(self, name: str, size: int) -> None:
        """Make room for partials that no earlier part of a set has written."""
        more = max(0, size - self.partials[name])
        self.partials[name] += more
        for held in (self.values, self.written):
            held[name] = np.concatenate((held[name], np.zeros(more, held[name].dtype)))

    def _by_torch(self, code: Graph, given: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
        """Compute ``[vertices, ...]`` of values of as many vertices, together where PyTorch can do that."""
        values = [torch.from_numpy(value).reshape(count, *tensor.shape)
                  for tensor, value in zip(code.inputs, given, strict=True)]

        def compute(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            held = dict(zip(code.inputs, inputs, strict=True))
            for op in code.ops:
                held.update(zip(op.outputs, computed(op, [held[tensor] for tensor in op.inputs]), strict=True))
            return tuple(held[tensor] for tensor in code.outputs)

        if not values:
            return [value.expand(count, *value.shape).numpy() for value in compute()]
        if count > 1 and not any(op.target in OWN for op in code.ops):
            with contextlib.suppress(RuntimeError, ValueError), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of rules that it does not have, and does without
                return [value.numpy() for value in torch.vmap(compute)(*values)]
        results = [compute(*(value[vertex].clone() for value in values)) for vertex in range(count)]
        return [torch.stack(each).detach().numpy() for each in zip(*results, strict=True)]

    def _by_kernel(
        self, code: Graph, kernel: TileKernel, given: Sequence[np.ndarray], count: int,
    ) -> list[np.ndarray]:
        """Compute the same by the tile kernels."""
        fields = [np.ascontiguousarray(value.astype(BITS[tensor.dtype]))
                  for tensor, value in zip(code.inputs, given, strict=True)]
        fields += [np.zeros((count, tensor.num_elements), BITS[tensor.dtype]) for tensor in code.outputs]
        scratch = np.zeros(kernel.scratch_bytes + 64, np.uint8)
        for offset, values, dtype in kernel.constants:
            kept = np.array(values, {DType.LONG: np.int64}.get(dtype, BITS[dtype]))
            scratch[offset : offset + kept.nbytes] = kept.view(np.uint8)
        vertex = np.arange(count, dtype=np.int64)
        bases = [field.ctypes.data + vertex * (field.nbytes // count) for field in fields]
        bases.append(np.full(count, scratch.ctypes.data, np.int64))
        places = np.stack([bases[one.field] + one.offset for one in kernel.arguments], 1) if kernel.arguments else None
        if places is not None:
            run_vertices(kernel.calls, places)
        return fields[len(given) :]


def simulate(groups: Sequence[tuple[VertexGroup, int]], operands: Sequence[np.ndarray], *, kernels: bool) -> Any:
    """Run the compute sets of one op and return its results.

    Args:
        groups: Of one op in order, and how often each runs.
        operands: Values of its inputs.
        kernels: Whether the tile kernels compute, not PyTorch.
    """
    run = Simulated(groups[0][0].op, operands, kernels=kernels)
    for number, (group, repeats) in enumerate(groups):
        assert group.tiling is not None
        for part in range(repeats):
            vertices = group.tiling(group.op, group.runs, part)
            if vertices is not None:
                run.run(vertices, number)
    return run.outputs()
