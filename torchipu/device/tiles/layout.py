"""Where on the tiles the elements of variables lie, and in which bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchipu.ir.graph import Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import Variable
from torchipu.ir.region import Numbers
from torchipu.ir.types import DType, Role

BITS: dict[DType, type[np.generic]] = {
    DType.HALF: np.float16, DType.FLOAT: np.float32, DType.INT: np.int32, DType.LONG: np.int32, DType.SHORT: np.int16,
    DType.CHAR: np.int8, DType.UNSIGNED_CHAR: np.uint8, DType.BOOL: np.bool_,
}
"""How tile memory holds each element type."""
VALUES: dict[DType, type[np.generic]] = {
    DType.HALF: np.float32, DType.FLOAT: np.float32, DType.INT: np.int32, DType.LONG: np.int64, DType.SHORT: np.int16,
    DType.CHAR: np.int8, DType.UNSIGNED_CHAR: np.uint8, DType.BOOL: np.bool_,
}
"""How values of each element type are handed to whoever computes with them beside the tiles."""


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Elements on tiles.

    Attributes:
        tile: ``[elements]``.
        offset: ``[elements]``, bytes from where the variable begins on its tile.
        largest: Bytes on the fullest tile.
    """

    tile: Numbers
    offset: Numbers
    largest: int


def spread_of(mapping: TileMapping, element_bytes: int) -> Spread:
    """Return where the elements of a mapping lie: those of a tile one behind the other, in their order."""
    runs = np.array(mapping.runs, np.int64).reshape(-1, 3)
    counts = runs[:, 2] - runs[:, 1]
    held: dict[int, int] = {}
    before = np.zeros(len(runs), np.int64)
    for number, (tile, begin, end) in enumerate(mapping.runs):
        before[number] = held.get(tile, 0)
        held[tile] = held.get(tile, 0) + end - begin
    within = np.arange(counts.sum(), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    return Spread(
        np.repeat(runs[:, 0], counts), (np.repeat(before, counts) + within) * element_bytes,
        max(held.values(), default=0) * element_bytes,
    )


@dataclass(slots=True, eq=False)
class Held:
    """Values on tiles: a variable of the program, or what an op has there for a while.

    Attributes:
        name: For messages.
        dtype: Element type.
        spread: Where elements lie from ``address`` on.
        address: In bytes from the beginning of the tile.
        owner: Number that marks its bytes; those of the slots of a stash follow each other.
        is_wide: Whether values are doubles that are floats here.
        variable: The variable, if it is one.
    """

    name: str
    dtype: DType
    spread: Spread
    address: int
    owner: int
    is_wide: bool = False
    variable: Variable | None = None
    _places: Numbers | None = None

    def places(self, tile_bytes: int) -> Numbers:
        """Return where each element lies in the memory of the IPU, in bytes; of a stash, in its first slot.

        Args:
            tile_bytes: Memory of a tile.
        """
        if self._places is None:
            self._places = self.spread.tile * tile_bytes + self.address + self.spread.offset
        return self._places

    @property
    def bits(self) -> type[np.generic]:
        """Type of its elements in tile memory."""
        return np.float32 if self.is_wide else BITS[self.dtype]

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in tile memory."""
        return np.dtype(self.bits).itemsize

    @property
    def num_elements(self) -> int:
        """How many there are."""
        return len(self.spread.tile)


def lies_on(one: Held, other: Held) -> bool:
    """Whether two variables of an IPU lie on the same bytes, each element on the one of the same number."""
    variables = one.variable, other.variable
    if variables[0] is None or variables[1] is None or variables[0].ipu != variables[1].ipu:
        return False
    if one.address != other.address or one.element_bytes != other.element_bytes or variables[0].depth > 1:
        return False
    return variables[0].mapping.runs == variables[1].mapping.runs and variables[1].depth == 1


def to_bits(values: NDArray[np.generic], held: Held) -> NDArray[np.generic]:
    """Return values as tile memory holds them, row-major."""
    if held.is_wide and values.dtype.kind == "i":
        return np.ascontiguousarray(values).view(np.float64).astype(np.float32)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values).astype(held.bits)


def to_values(bits: NDArray[np.generic], held: Held) -> NDArray[np.generic]:
    """Return what tile memory holds as values."""
    if held.is_wide:
        doubles = bits.astype(np.float64)
        return doubles if held.num_elements == 1 else doubles.view(np.int64)  # sums; words of hyper-parameters
    return bits.astype(VALUES[held.dtype])


def is_wide(value: Variable | Tensor) -> bool:
    """Whether words of 64 bits are doubles: hyper-parameters of an optimiser and sums of gradients' squares."""
    return value.dtype is DType.LONG and value.role in (Role.HYPERPARAMETER, Role.GRADIENT)
