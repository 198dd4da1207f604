"""Decides on which tiles each tensor of a placed graph lives.

Kept by later passes: each element is mapped exactly once, to a tile that the target has; runs end on whole vectors.
"""

from __future__ import annotations

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping, linear
from torchipu.ir.types import DType
from torchipu.ops.lowering import MIN_BYTES_PER_TILE, ceil_div
from torchipu.ops.spec import spec_of
from torchipu.target import Target


def map_tiles(graph: Graph, target: Target) -> dict[Tensor, TileMapping]:
    """Map every tensor of a graph.

    Results of elementwise ops and views follow an operand; all else is spread linearly, a vector at a time and at least
    128 bytes a tile. States are spread from where the last one ended, so that small ones do not pile up on tile 0.

    Args:
        graph: A placed graph.
        target: The machine.

    Returns:
        One mapping for each graph input and each op result; equal mappings are the same object.
    """
    spread = _Linear(target)
    mappings: dict[Tensor, TileMapping] = {}
    ipus = _first_consumer(graph)
    for tensor in graph.inputs:
        lasting = tensor.role.is_state
        mappings[tensor] = spread.balanced(tensor, ipus.get(tensor, 0)) if lasting else spread.from_start(tensor)
    for op in graph.ops:
        followed = _followed(op, mappings, spread)
        for result in op.outputs:
            if followed is not None and followed.num_elements == result.num_elements:
                mappings[result] = mappings[followed]
            else:
                mappings[result] = spread.from_start(result)
    return mappings


def _first_consumer(graph: Graph) -> dict[Tensor, int]:
    """Return the IPU of the first op that reads each graph input."""
    ipus: dict[Tensor, int] = {}
    for op in graph.ops:
        if op.placement is not None:
            for operand in op.inputs:
                ipus.setdefault(operand, op.placement.ipu)
    return ipus


def _followed(op: Op, mappings: dict[Tensor, TileMapping], spread: _Linear) -> Tensor | None:
    """Return the operand whose mapping the results take over, or None.

    Poplibs takes the operand with the smallest maximum a tile, then the most tiles, then the fewest runs
    (``ipu_hardware.md`` 3.3).
    """
    spec = spec_of(op)
    if spec is None or not op.inputs:
        return None
    if spec.is_view:
        return op.inputs[0]
    if spec.instruction is None or not op.outputs:
        return None
    whole = [t for t in op.inputs if t.num_elements == op.outputs[0].num_elements]
    return min(whole, key=lambda t: spread.rank(mappings[t]), default=None)


class _Linear:
    """Linear mappings of one target; equal ones are made once.

    Args:
        target: The machine.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.made: dict[tuple[int, DType, int], TileMapping] = {}
        self.ranks: dict[int, tuple[int, int, int]] = {}
        self.next_tile: dict[int, int] = {}

    def from_start(self, tensor: Tensor, first_tile: int = 0) -> TileMapping:
        """Return the mapping of a tensor from a tile on."""
        key = (tensor.num_elements, tensor.dtype, first_tile)
        found = self.made.get(key)
        if found is None:
            element_bytes = tensor.dtype.device_bytes
            found = linear(
                tensor.num_elements, self.target.num_tiles, self.target.vector_width(element_bytes),
                ceil_div(MIN_BYTES_PER_TILE, element_bytes), first_tile,
            )
            self.made[key] = found
        return found

    def balanced(self, tensor: Tensor, ipu: int) -> TileMapping:
        """Return the mapping of a lasting tensor: behind the one before, or from tile 0 where too few are left."""
        used = len(self.from_start(tensor).runs)
        begin = self.next_tile.get(ipu, 0)
        if begin + used > self.target.num_tiles:
            begin = 0
        self.next_tile[ipu] = begin + used
        return self.from_start(tensor, begin)

    def rank(self, mapping: TileMapping) -> tuple[int, int, int]:
        """Return the sort key by which elementwise ops choose among operand mappings."""
        key = id(mapping)
        if key not in self.ranks:
            self.ranks[key] = (mapping.max_elements_per_tile(), -len(mapping.tiles), len(mapping.runs))
        return self.ranks[key]
