"""What the backend did in this process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """What the backend did in this process.

    Attributes:
        graphs: FX graphs that Dynamo handed over.
        programs: Programs compiled: forward, backward and inference, once for each set of sizes.
        passes: Times that a graph was taken through the graph passes: once for all sizes, unless a pass has decided
            something by a size.
        device_programs: Device programs compiled: for each program, or for a few sizes of a graph of any size.
        evicted: Programs dropped again to keep within ``plan_cache_bytes``.
    """

    graphs: int = 0
    programs: int = 0
    passes: int = 0
    device_programs: int = 0
    evicted: int = 0


COUNTS = Counts()
