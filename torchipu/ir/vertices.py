"""The vertices of a compute set: where they are, what each reads and writes, and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.region import Numbers, Region

if TYPE_CHECKING:
    from torchipu.ir.mapping import TileMapping

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class VertexSet:
    """The vertices of one compute set, or of one of its runs where a tile computes in parts.

    Attributes:
        tiles: ``[vertices]``, the tile of each.
        reads: What they read.
        writes: What they write.
        sizes: ``[vertices, n]``, numbers that ``code`` takes; vertices with the same ones compute the same.
        code: What a vertex computes: ops on what it alone has. Its inputs are the values of ``reads`` in their order,
            its outputs those of ``writes``. The records of these ops give the tile kernels, PyTorch's operators of
            these names judge them.
    """

    tiles: Numbers
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    sizes: Numbers
    code: Callable[[Sizes], Graph]


Tiling = Callable[[Op, "TileMapping", int], "VertexSet | None"]
"""``(op, runs, part) -> vertices``: of a compute set whose iteration space lies so on the tiles, in the run of that
number where the set runs several times. None where nothing is left to do in that run."""


def one_a_run(runs: TileMapping) -> tuple[Numbers, Numbers, Numbers]:
    """Return the tile, the begin and the end of each run of an iteration space: one vertex each."""
    table = np.array(runs.runs, np.int64).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()


def code_of(op: Op) -> Graph:
    """Return the code of vertices that compute a single op, whose operands they read in order, each once."""
    return Graph("vertex", tuple(dict.fromkeys(op.inputs)), op.outputs, (op,))


def local(tensor: Tensor, *shape: int, name: str = "") -> Tensor:
    """Return the tensor that stands for a part of another one within a vertex."""
    return Tensor(name or tensor.name, shape, tensor.dtype, tensor.role)
