"""The device half of a record: codelets and what they cost, and the compute sets that an op becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchipu.ir.graph import Op
from torchipu.ir.vertices import Tiling

if TYPE_CHECKING:
    from torchipu.target import Target


@dataclass(frozen=True, slots=True)
class Codelet:
    """Device code of a vertex, known by its cost.

    Attributes:
        name: Poplibs-like name, unique.
        cycles: ``(target, work) -> tile cycles`` of one vertex with six workers; ``work`` holds the sizes on
            the busiest tile by name.
        code_bytes: Bytes of code on each tile that runs it; counted once per tile.
        source: Where the formula comes from, or ``estimate``.
        writes_interleaved: Whether what it writes has to lie in interleaved memory: partials of the matrix unit, which
            it loads and stores 128 bits at a time.
        control_bytes: Control code of a compute set, a tile, beyond what the least takes.
        state_bytes: State of its vertices, the same.
    """

    name: str
    cycles: Callable[[Target, Mapping[str, int]], int]
    code_bytes: int
    source: str = "estimate"
    writes_interleaved: bool = False
    control_bytes: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Vertices:
    """One compute set that an op's lowering asks for.

    Attributes:
        codelet: What runs.
        elements: Size of the iteration space that is spread over the tiles.
        grain: Elements that stay together on a tile.
        work: ``elements on the busiest tile -> sizes`` for the cycle formula.
        gathered_bytes: Bytes that the busiest tile must receive first because operands live elsewhere.
        fragments: Contiguous pieces among them.
        temporary_bytes: Bytes that a tile needs while the set runs.
        partial_bytes: Those of them that partials take; 0 where the set writes its results at once.
        max_tiles: Tiles that the plan uses at most; None for all of them.
        repeats: How often the set runs, each time with other operands in the same temporary memory.
        tiling: Gives the vertices, with what each of them reads, writes and computes. Worked out for the tile machine
            alone; None where one vertex computes the whole op there, which goes for all sets of an op together.
    """

    codelet: Codelet
    elements: int
    work: Callable[[int], Mapping[str, int]]
    grain: int = 1
    gathered_bytes: int = 0
    fragments: int = 1
    temporary_bytes: int = 0
    partial_bytes: int = 0
    max_tiles: int | None = None
    repeats: int = 1
    tiling: Tiling | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product on the device.

    Attributes:
        groups: Independent products of the same sizes.
        positions: Rows of the left operand.
        inputs: Summands.
        outputs: Columns of the right operand.
    """

    groups: int
    positions: int
    inputs: int
    outputs: int


Lowering = Callable[[Op, "Target"], tuple[Vertices, ...]]
SummandTiles = Callable[[Op, "Target"], tuple[int, ...]]
"""How many tiles share the summands of each product of an op on halves."""
