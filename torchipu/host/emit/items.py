"""How work is cut into items, and these into chunks that threads take."""

from __future__ import annotations

from torchipu.ir.sizes import of_numbers

LEAST_CHUNK_MACS = 100_000  # less than about two microseconds of work is not worth a thread
LEAST_ITEMS = 8  # items that keep four threads busy


@of_numbers
def grain_for(items: int, work: float, least_work: float) -> int:
    """Return how many items a chunk takes so that it holds at least ``least_work`` of ``work`` in all."""
    if items <= 1 or work <= 0:
        return 1
    return min(items, max(1, round(least_work * items / work)))
