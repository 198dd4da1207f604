"""The compute sets of one op, with all that is fixed before they run: fields, partials and tile kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchipu.device.tiles.arena import Arena
from torchipu.device.tiles.fields import Field, Fields
from torchipu.device.tiles.kernels import TileKernel, tile_kernel
from torchipu.device.tiles.layout import Held, Spread, lies_on
from torchipu.errors import DeviceProgramError
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.program import Variable, VertexGroup
from torchipu.ir.region import Numbers, Region, are_distinct
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, VertexSet
from torchipu.optable.chain import can_join
from torchipu.optable.random_streams import rounding_stream
from torchipu.optable.spec import spec_of


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Vertices that run the same kernels.

    Attributes:
        vertices: Their numbers.
        code: What they compute.
        kernel: The same as calls of kernels.
        field: For each argument of the kernels the field that it is in; see ``Argument``.
        offset: In it.
    """

    vertices: Numbers
    code: Graph
    kernel: TileKernel
    field: Numbers
    offset: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSet:
    """One run of a compute set.

    Attributes:
        tiles: Of the vertices.
        reads: What they read.
        writes: What they write.
        alike: Vertices by what they compute.
        number: Among all runs of the sets of the op, in order: each takes random bits of its own.
        first: Element of the op's results that the first one here is, where a replica has a share.
    """

    tiles: Numbers
    reads: tuple[Field, ...]
    writes: tuple[Field, ...]
    alike: tuple[Alike, ...]
    number: int
    first: int = 0


@dataclass(slots=True, eq=False)
class Partials:
    """What the sets of an op hand on; it grows as parts of a set write more of it."""

    dtype: DType
    held: Held
    written: int = 0


@dataclass(slots=True)
class Preparation:
    """Prepares the compute sets of an op.

    Args:
        op: The op.
        held: Where the value of a variable lies.
        variables: Of operands and results by tensor.
        numbering: For operands and results whose elements lie in another order than theirs, or are a share of all: the
            element of the variable for each.
        arena: Memory for what is gathered and handed on.
        tile_bytes: Memory of a tile.
        new_owner: Gives the number that marks the bytes of a new value.
        first: Element of the whole results that the op's first one is.
    """

    op: Op
    held: Callable[[Variable], Held]
    variables: Mapping[Tensor, Variable]
    numbering: Mapping[Tensor, Numbers]
    arena: Arena
    tile_bytes: int
    new_owner: Callable[[str], int]
    first: int = 0
    partials: dict[str, Partials] = field(default_factory=dict)
    num_bytes: int = 0

    def prepare(self, groups: Sequence[tuple[VertexGroup, int]]) -> dict[tuple[int, int], PreparedSet | None]:
        """Return the runs of all sets by number of the set and of the run; None where nothing is left to do.

        Args:
            groups: Of the op in order, and how often each runs.

        Raises:
            UnsupportedOpError: Something that a vertex computes has no tile kernel.
        """
        made: dict[tuple[int, int], PreparedSet | None] = {}
        kernels: dict[tuple[int, Sizes], tuple[Graph, TileKernel]] = {}
        for group, repeats in groups:
            for part in range(repeats):
                assert group.tiling is not None
                vertices = group.tiling(self.op, group.runs, part)
                made[group.number, part] = None if vertices is None else self._set(group, vertices, kernels, len(made))
        return made

    def _set(
        self, group: VertexGroup, vertices: VertexSet, kernels: dict[tuple[int, Sizes], tuple[Graph, TileKernel]],
        number: int,
    ) -> PreparedSet:
        if len(vertices.tiles) and not 0 <= vertices.tiles.min() <= vertices.tiles.max() < len(self.arena.height):
            raise DeviceProgramError(
                f"{self.op.target} has vertices on tiles {int(vertices.tiles.min())} to {int(vertices.tiles.max())} "
                f"of an IPU of {len(self.arena.height)} tiles", source=self.op.source,
            )
        alike = _alike(group, vertices, kernels, self._rounded(vertices))
        self._refuse_sizes(vertices, alike)
        fields = Fields(vertices.tiles, self.arena, self.tile_bytes, self.new_owner)
        writes = tuple(self._write(fields, region) for region in vertices.writes)
        before = self.arena.height.copy()  # what is gathered makes room again, partials stay
        takes_turns = all(_may_overwrite(op) for kind in alike for op in kind.code.ops)
        reads = tuple(self._read(fields, region, writes, takes_turns) for region in vertices.reads)
        self.arena.height[:] = before
        prepared = PreparedSet(vertices.tiles, reads, writes, alike, number, self.first)
        _refuse_races(prepared, self.op, self.tile_bytes)
        return prepared

    def _refuse_sizes(self, vertices: VertexSet, alike: Sequence[Alike]) -> None:
        """Refuse vertices whose code touches more, or less, than their regions."""
        for kind in alike:
            given = len(vertices.reads), len(vertices.writes)
            if given != (len(kind.code.inputs), len(kind.code.outputs)):
                raise DeviceProgramError(
                    f"vertices of {self.op.target} have {given[0]} regions to read and {given[1]} to write, and their "
                    f"code has {len(kind.code.inputs)} and {len(kind.code.outputs)}", source=self.op.source,
                )
            fields = zip((*vertices.reads, *vertices.writes), (*kind.code.inputs, *kind.code.outputs), strict=True)
            for region, tensor in fields:
                counts = region.counts()[kind.vertices]
                if (counts != tensor.num_elements).any():
                    vertex = int(kind.vertices[(counts != tensor.num_elements).argmax()])
                    raise DeviceProgramError(
                        f"the vertex of {self.op.target} on tile {int(vertices.tiles[vertex])} has a region of "
                        f"{int(region.counts()[vertex])} elements of {region.name!r}, and its code touches "
                        f"{tensor.num_elements}", source=self.op.source,
                    )

    def _rounded(self, vertices: VertexSet) -> dict[int, int]:
        """Return the streams by which halves of the op's results are rounded, by number of what vertices write."""
        found = {}
        for number, region in enumerate(vertices.writes):
            tensor = self._tensor(region.name)
            stream = None if tensor is None else rounding_stream(self.op, tensor)
            if stream is not None:
                found[number] = stream
        return found

    # ------------------------------------------------------------------ fields
    def _tensor(self, name: str) -> Tensor | None:
        for label, tensor in zip(operand_labels(self.op), self.op.inputs, strict=True):
            if label == name:
                return tensor
        for index, tensor in enumerate(self.op.outputs):
            if name == ("out" if index == 0 else f"out{index}"):
                return tensor
        return None

    def _read(self, fields: Fields, region: Region, writes: Sequence[Field], takes_turns: bool) -> Field:
        tensor = self._tensor(region.name)
        if tensor is None:
            if region.name not in self.partials:
                raise DeviceProgramError(f"{self.op.target} reads partials {region.name!r} that no set of it has made")
            handed = self.partials[region.name].held
            self._refuse_beyond(region, region.elements(), handed.num_elements)
            self._refuse_unmade(region, handed)
            return self._counted(fields.read(region, handed, region.elements()))
        held, elements = self.held(self.variables[tensor]), region.elements()
        self._refuse_beyond(region, elements, tensor.num_elements)
        numbering = self.numbering.get(tensor)
        if numbering is not None:
            elements = np.where(elements >= 0, numbering[elements], elements)
        self._refuse_beyond(region, elements, held.num_elements)
        below = [write for write in writes if write.is_in_place and lies_on(write.source, held)]
        is_overwritten = bool(below) or any(write.is_in_place and write.source is held for write in writes)
        made = fields.read(region, held, elements, gathered=is_overwritten and not takes_turns)
        if made.is_in_place and any(_is_shifted(made, write) for write in below):
            made = fields.read(region, held, elements, gathered=True)
        return self._counted(made)

    def _write(self, fields: Fields, region: Region) -> Field:
        tensor, elements = self._tensor(region.name), region.elements()
        if not are_distinct(elements):
            raise DeviceProgramError(f"two vertices of {self.op.target} write the same element of {region.name!r}")
        if tensor is not None:
            held = self.held(self.variables[tensor])
            if tensor in self.numbering:
                elements = self.numbering[tensor][elements]
            self._refuse_beyond(region, elements, held.num_elements)
            return self._counted(fields.write(region, held, elements))
        held = self._partials(fields, region, elements)
        return self._counted(fields.write(region, held, elements))

    def _partials(self, fields: Fields, region: Region, elements: Numbers) -> Held:
        """Return partials, with room for elements that no set has written before, on the tiles of those who do."""
        if region.dtype is None:
            raise DeviceProgramError(f"partials {region.name!r} of {self.op.target} have no element type")
        name = f"{self.op.outputs[0].name}.{region.name}"
        found = self.partials.get(region.name)
        if found is None:
            empty = Spread(np.full(0, -1, np.int64), np.zeros(0, np.int64), 0)
            found = Partials(region.dtype, Held(name, region.dtype, empty, 0, self.new_owner(name)))
            self.partials[region.name] = found
        held, most = found.held, int(elements.max(initial=-1)) + 1
        tile, offset = held.spread.tile, held.spread.offset
        if most * region.dtype.device_bytes > len(self.arena.height) * self.tile_bytes:
            raise DeviceProgramError(
                f"vertices of {self.op.target} write element {most - 1} of partials {region.name!r}, "
                "which is more than all tiles hold", source=self.op.source,
            )
        if most > len(tile):
            grown = most - len(tile)
            tile = np.concatenate((tile, np.full(grown, -1, np.int64)))
            offset = np.concatenate((offset, np.zeros(grown, np.int64)))
        counts = region.counts()
        is_new = tile[elements] < 0
        if is_new.any():
            vertex = np.repeat(np.arange(len(counts)), counts)
            fresh = np.bincount(vertex[is_new], minlength=len(counts)).astype(np.int64)
            room, _ = fields.partials(name, region.dtype, fresh)
            tile[elements[is_new]], offset[elements[is_new]] = room.spread.tile, room.spread.offset
        held.spread, held._places = Spread(tile, offset, 0), None
        return held

    def _refuse_beyond(self, region: Region, elements: Numbers, size: int) -> None:
        if elements.max(initial=-1) >= size:
            raise DeviceProgramError(
                f"vertices of {self.op.target} touch element {int(elements.max())} of {region.name!r}, "
                f"which has {size}",
                source=self.op.source,
            )

    def _refuse_unmade(self, region: Region, held: Held) -> None:
        """Refuse to read partials that no vertex has written."""
        elements = region.elements()
        unmade = elements[(elements >= 0) & (held.spread.tile[elements] < 0)]
        if len(unmade):
            raise DeviceProgramError(
                f"vertices of {self.op.target} read element {int(unmade[0])} of partials {region.name!r}, which nobody "
                "has written", source=self.op.source,
            )

    def _counted(self, made: Field) -> Field:
        self.num_bytes += made.base.nbytes + sum(
            move.from_places.nbytes + move.to_places.nbytes + move.elements.nbytes for move in made.moves
        )
        return made


def _alike(
    group: VertexGroup, vertices: VertexSet, kernels: dict[tuple[int, Sizes], tuple[Graph, TileKernel]],
    rounded: Mapping[int, int],
) -> tuple[Alike, ...]:
    """Return the vertices of a set by what they compute."""
    rows, which = np.unique(vertices.sizes, axis=0, return_inverse=True)
    found = []
    for number, row in enumerate(rows.tolist()):
        sizes = tuple(row)
        if (group.number, sizes) not in kernels:
            code = vertices.code(sizes)
            kernels[group.number, sizes] = code, tile_kernel(code, rounded)
        code, kernel = kernels[group.number, sizes]
        table = np.array([(one.field, one.offset) for one in kernel.arguments], np.int64).reshape(-1, 2)
        found.append(Alike(np.flatnonzero(which.reshape(-1) == number), code, kernel, table[:, 0], table[:, 1]))
    return tuple(found)


def _may_overwrite(op: Op) -> bool:
    """Whether a kernel of the op reads each element before it writes it, so that a result may lie on an operand."""
    spec = spec_of(op)
    return can_join(op) or (spec is not None and op.target.startswith("ipu.") and spec.emit is not None)


def _is_shifted(read: Field, write: Field) -> bool:
    """Whether some vertex would read, on the bytes that it overwrites, other elements than those it makes there."""
    return not (np.array_equal(read.base, write.base) and np.array_equal(read.num_bytes, write.num_bytes))


def _refuse_races(made: PreparedSet, op: Op, tile_bytes: int) -> None:
    """Refuse vertices of which one writes bytes that another one touches in place."""
    begin, size, vertex = _stretches(made.writes)
    order = np.argsort(begin, kind="stable")
    begin, end, vertex = begin[order], (begin + size)[order], vertex[order]
    shared = np.flatnonzero(begin[1:] < end[:-1])
    if len(shared):
        raise _race(op, int(begin[shared[0] + 1]) // tile_bytes)
    read_begin, read_size, reader = _stretches(made.reads)
    low = np.searchsorted(end, read_begin, side="right")
    high = np.searchsorted(begin, read_begin + read_size, side="left")
    touched = np.flatnonzero(low < high)
    strangers = (vertex[low[touched]] != reader[touched]) | (vertex[high[touched] - 1] != reader[touched])
    if strangers.any():
        raise _race(op, int(read_begin[touched[strangers.argmax()]]) // tile_bytes)


def _stretches(fields: Sequence[Field]) -> tuple[Numbers, Numbers, Numbers]:
    """Return begin, length and vertex of all stretches of memory that kernels touch."""
    begin = np.concatenate([one.base for one in fields]) if fields else np.zeros(0, np.int64)
    size = np.concatenate([one.num_bytes for one in fields]) if fields else np.zeros(0, np.int64)
    vertex = np.concatenate([np.arange(len(one.base)) for one in fields]) if fields else np.zeros(0, np.int64)
    some = size > 0
    return begin[some], size[some], vertex[some]


def _race(op: Op, tile: int) -> DeviceProgramError:
    return DeviceProgramError(
        f"two vertices of {op.target} on tile {tile} touch the same bytes in one compute set, and one writes them",
        source=op.source,
    )
