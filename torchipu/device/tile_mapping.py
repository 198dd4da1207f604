"""Decides on which tiles each tensor of a placed graph lives.

Kept by later passes: each element is mapped exactly once, to a tile that the target has; runs end on whole vectors.
"""

from __future__ import annotations

from torchipu.device.codelets import MIN_BYTES_PER_TILE
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping, linear
from torchipu.ir.types import DType, Leg
from torchipu.optable.control import formals_of
from torchipu.optable.spec import spec_of
from torchipu.target import Target


def map_tiles(graph: Graph, target: Target) -> dict[Tensor, TileMapping]:
    """Map every tensor of a graph.

    Results of elementwise ops and views follow an operand; all else is spread linearly, a vector at a time and at least
    128 bytes a tile. States begin where the last one ended, so that small ones do not pile up on tile 0.

    Args:
        graph: A placed graph.
        target: The machine.

    Returns:
        One mapping for each graph input and each op result; equal mappings are the same object.
    """
    spread = _Linear(target)
    mappings: dict[Tensor, TileMapping] = {}
    for tensor, first_tile in _state_tiles(graph, spread).items():
        mappings[tensor] = spread.at(tensor, first_tile)
    for tensor in graph.inputs:
        if tensor not in mappings:
            mappings[tensor] = spread.at(tensor)
    _map_results(graph, mappings, spread)
    return mappings


def _map_results(graph: Graph, mappings: dict[Tensor, TileMapping], spread: _Linear) -> None:
    """Map the results of all ops, and within the bodies of control flow."""
    for op in graph.ops:
        followed = _followed(op, mappings, spread)
        for result in op.outputs:
            if result in mappings:
                continue
            if followed is not None and followed.num_elements == result.num_elements:
                mappings[result] = mappings[followed]
            else:
                mappings[result] = spread.at(result)
        for body in op.bodies:
            for formal, held, is_row in formals_of(op, body):
                mappings[formal] = spread.at(formal) if is_row else mappings[held]
            _map_results(body, mappings, spread)


def _state_tiles(graph: Graph, spread: _Linear) -> dict[Tensor, int]:
    """Return the first tile of each state and of all that meets it, element by element.

    A weight, its accumulator, its optimiser state and its gradient must lie on the same tiles, or each update would
    begin with an exchange.
    """
    together = _Together()
    next_values = {value for _, value in graph.updates}
    for op in graph.ops:
        if _is_pointwise(op) or not next_values.isdisjoint(op.outputs):
            sizes: dict[int, Tensor] = {}
            for tensor in (*op.inputs, *op.outputs):
                together.join(sizes.setdefault(tensor.num_elements, tensor), tensor)
    ipus = _first_consumer(graph)
    tile_by_group: dict[Tensor, int] = {}
    for state in graph.inputs:
        if state.role.is_state:
            group = together.head(state)
            if group not in tile_by_group:
                tile_by_group[group] = spread.next_first_tile(state, ipus.get(state, 0))
    members = {tensor: together.head(tensor) for tensor in (*together.parent, *graph.inputs)}
    return {tensor: tile_by_group[group] for tensor, group in members.items() if group in tile_by_group}


def _is_pointwise(op: Op) -> bool:
    """Whether an op handles each element apart from all others."""
    spec = spec_of(op)
    if spec is None or spec.is_view:
        return False
    return spec.instruction is not None or spec.is_in_place or op.leg is Leg.UPDATE


class _Together:
    """Tensors that must lie on the same tiles: a union of sets."""

    def __init__(self) -> None:
        self.parent: dict[Tensor, Tensor] = {}

    def head(self, tensor: Tensor) -> Tensor:
        """Return the tensor that stands for a set."""
        path = []
        while (above := self.parent.get(tensor, tensor)) is not tensor:
            path.append(tensor)
            tensor = above
        self.parent.update(dict.fromkeys(path, tensor))
        return tensor

    def join(self, first: Tensor, second: Tensor) -> None:
        """Make two sets one."""
        heads = self.head(first), self.head(second)
        self.parent.setdefault(heads[0], heads[0])
        self.parent[heads[1]] = heads[0]


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
    if not op.outputs or not _is_pointwise(op):
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

    def at(self, tensor: Tensor, first_tile: int = 0) -> TileMapping:
        """Return the mapping of a tensor from a tile on, or from tile 0 where too few are left behind it."""
        key = (tensor.num_elements, tensor.dtype, first_tile)
        found = self.made.get(key)
        if found is None:
            element_bytes = tensor.dtype.device_bytes
            width, least = self.target.vector_width(element_bytes), ceil_div(MIN_BYTES_PER_TILE, element_bytes)
            found = linear(tensor.num_elements, self.target.num_tiles, width, least, first_tile)
            if found.runs and found.runs[-1][0] >= self.target.num_tiles:
                found = self.at(tensor)
            self.made[key] = found
        return found

    def next_first_tile(self, state: Tensor, ipu: int) -> int:
        """Return the tile behind the last state of an IPU, or 0 where too few are left."""
        used = len(self.at(state).runs)
        begin = self.next_tile.get(ipu, 0)
        if begin + used > self.target.num_tiles:
            begin = 0
        self.next_tile[ipu] = begin + used
        return begin

    def rank(self, mapping: TileMapping) -> tuple[int, int, int]:
        """Return the sort key by which elementwise ops choose among operand mappings."""
        key = id(mapping)
        if key not in self.ranks:
            self.ranks[key] = (mapping.max_elements_per_tile(), -len(mapping.tiles), len(mapping.runs))
        return self.ranks[key]
