"""What of an arena no kernel may touch: with kernels of the checked flavour such an access ends the process."""

from __future__ import annotations

from torchipu._kernels.abi import fence
from torchipu.host.lanes import Layout
from torchipu.host.plan import HostPlan
from torchipu.host.storage import Place


def fence_arenas(plan: HostPlan, layout: Layout, address: int, num_bytes: int, arena_bytes: int) -> None:
    """Close all of some arenas but the allocations themselves.

    Args:
        plan: Whose allocations they hold.
        layout: Where the lanes of an allocation lie.
        address: Of the first arena.
        num_bytes: Of all of them.
        arena_bytes: From one arena to the next.
    """
    spans = [
        (begin, begin + allocation.num_bytes)
        for arena in range(0, num_bytes, max(1, arena_bytes))
        for allocation in plan.allocations
        if allocation.place is Place.ARENA and allocation.first >= 0
        for lane in range(layout.lanes)
        for begin in [arena + layout.begin_bytes(allocation) + lane * layout.stride_bytes(allocation)]
    ]
    fence(address, num_bytes, spans)
