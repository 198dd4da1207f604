"""Cycles of waiting for each other."""

from __future__ import annotations

from torchipu.target import Target


def sync_cycles(target: Target, scope: str) -> int:
    """Return the cycles of a sync.

    Args:
        target: The machine.
        scope: ``ipu`` for the tiles of one IPU, ``replica`` for those of several, ``host`` before a stream.

    Raises:
        ValueError: The scope is unknown.
    """
    if scope == "ipu":
        return target.sync_cycles
    if scope in ("replica", "host"):
        return target.ipu_sync_cycles
    raise ValueError(f"unknown sync scope {scope!r}")
