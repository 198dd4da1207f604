"""Allocations of a host plan and their addresses in one arena, planned from liveness."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

ALIGNMENT_BYTES = 64


class Place(Enum):
    """Which memory an allocation is part of; every replica has a bank of its own."""

    ARENA = "arena"
    STATE = "state"
    BANK = "bank"
    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory that steps read and write.

    Attributes:
        number: Its number, which ``HostTensor.buffer`` names while a plan is made.
        num_bytes: Size.
        place: Which memory it is part of.
        index: Position among the inputs, outputs or states; unused for the arena.
        offset_bytes: Offset in the arena, state or constant memory.
        first: First step that touches it.
        last: Last step that touches it.
        writers: Steps that write it.
    """

    number: int
    num_bytes: int
    place: Place
    index: int = 0
    offset_bytes: int = 0
    first: int = -1
    last: int = -1
    writers: list[int] = field(default_factory=list)


def aligned(num_bytes: int) -> int:
    """Round up to whole cache lines."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def place_in_arena(allocations: list[Allocation]) -> int:
    """Give every allocation an offset such that those alive at the same time do not overlap.

    Largest first, each at the lowest offset that is free over its whole life.

    Args:
        allocations: Arena allocations with ``first`` and ``last`` known.

    Returns:
        Bytes of the arena.
    """
    placed: list[Allocation] = []
    peak = 0
    for allocation in sorted(allocations, key=lambda a: (-a.num_bytes, a.number)):
        size = aligned(allocation.num_bytes)
        alive = sorted(
            ((other.offset_bytes, other.offset_bytes + aligned(other.num_bytes)) for other in placed
             if other.first <= allocation.last and allocation.first <= other.last),
        )
        offset = 0
        for begin, end in alive:
            if begin - offset >= size:
                break
            offset = max(offset, end)
        allocation.offset_bytes = offset
        placed.append(allocation)
        peak = max(peak, offset + size)
    return peak
