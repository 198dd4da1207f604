"""Allocations of a host plan and their addresses in one arena, planned from liveness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from torchipu._kernels.abi import CHECKED

ALIGNMENT_BYTES = 64


class Place(Enum):
    """Which memory an allocation is part of; every replica has a bank of its own.

    What is prepared before the first micro-batch is apart from the arena, of which there may be several. Where there
    are several replicas, those that run side by side have accumulators of their own, and their sums are partial until
    all have been added up; a word of signals says when. A replica reads its own number.
    """

    ARENA = "arena"
    PREPARED = "prepared"
    RANDOM = "random"
    STATE = "state"
    BANK = "bank"
    ACCUMULATOR = "accumulator"
    PARTIAL = "partial"
    SIGNAL = "signal"
    REPLICA = "replica"
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
        offset_bytes: Offset in the memory of its place.
        first: First step that touches it.
        last: Last step that touches it.
        writers: Steps that write it.
        is_apart: Whether an input is known to overlap no other.
    """

    number: int
    num_bytes: int
    place: Place
    index: int = 0
    offset_bytes: int = 0
    first: int = -1
    last: int = -1
    writers: list[int] = field(default_factory=list)
    is_apart: bool = False


def aligned(num_bytes: int) -> int:
    """Round up to whole cache lines."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def lay_out(allocations: Iterable[Allocation]) -> int:
    """Give allocations offsets one behind the other.

    Returns:
        Their bytes.
    """
    offset = 0
    for allocation in allocations:
        allocation.offset_bytes = offset
        offset += aligned(allocation.num_bytes)
    return offset


def place_in_arena(allocations: Sequence[Allocation]) -> int:
    """Give every allocation an offset such that those alive at the same time do not overlap.

    Largest first, each at the lowest offset that is free over its whole life.

    Args:
        allocations: Arena allocations with ``first`` and ``last`` known.

    Returns:
        Bytes of the arena.
    """
    return _place_apart(allocations) if CHECKED else _pack(allocations)


def _place_apart(allocations: Sequence[Allocation]) -> int:
    """Give every allocation memory of its own and a gap behind it, which is fenced off: see ``fences``."""
    offset = 0
    for allocation in allocations:
        allocation.offset_bytes = offset
        offset += aligned(allocation.num_bytes) + ALIGNMENT_BYTES
    return offset


def _pack(allocations: Sequence[Allocation]) -> int:
    peak = 0
    # Arrays: there are thousands of allocations in a large model, and each is compared with all before it.
    first, last, begin, end = np.zeros((4, len(allocations)), np.int64)
    for placed, allocation in enumerate(sorted(allocations, key=lambda a: (-a.num_bytes, a.number))):
        alive = (first[:placed] <= allocation.last) & (last[:placed] >= allocation.first)
        size = aligned(allocation.num_bytes)
        offset = _lowest_gap(begin[:placed][alive], end[:placed][alive], size)
        allocation.offset_bytes = offset
        first[placed], last[placed] = allocation.first, allocation.last
        begin[placed], end[placed] = offset, offset + size
        peak = max(peak, offset + size)
    return peak


def _lowest_gap(begins: np.ndarray, ends: np.ndarray, size: int) -> int:
    """Return the lowest offset at which ``size`` bytes are free between occupied ranges."""
    if not begins.size:
        return 0
    order = np.argsort(begins, kind="stable")
    # The gap before a range begins where all lower ranges have ended.
    floors = np.concatenate(([0], np.maximum.accumulate(ends[order])))
    fits = np.flatnonzero(begins[order] - floors[:-1] >= size)
    return int(floors[fits[0]] if fits.size else floors[-1])
