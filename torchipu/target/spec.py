"""The Target record that all machine models fill in."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu.errors import OptionsError, nearest


@dataclass(frozen=True, slots=True)
class Target:
    """Numbers of one machine; their sources stand beside each value in the machine's file.

    Attributes:
        name: ``mk1``, ``mk2``, ``bow`` or ``c600``.
        title: Name for people.
        num_ipus: IPUs that one process may use.
        num_tiles: Tiles of an IPU.
        num_workers: Worker threads of a tile.
        clock_hz: Tile clock.
        tile_memory_bytes: Memory of a tile.
        code_region_bytes: Part of it that can hold code.
        amp_macs_half_half: AMP multiply-accumulates a cycle and tile, half in, half partials.
        amp_macs_half_float: The same with half in, float partials.
        amp_macs_float: The same with float in and float partials.
        amp_macs_fp8: AMP multiply-accumulates a cycle and tile, floats of 8 bits in, half partials; 0 where the matrix
            unit does not take them.
        exchange_bytes_per_cycle: Bytes a tile sends, and receives, a cycle.
        sync_cycles: One internal sync.
        ipu_sync_cycles: One sync between IPUs.
        link_bytes_per_cycle: Bytes a cycle between two IPUs, one direction.
        gateway_bytes_per_s: What each of the ``num_ipus`` that links join sends to, and receives from, other machines.
        host_bytes_per_s: Host streams of one IPU.
        streaming_bytes_per_s: Streaming Memory of one IPU.
        stack_bytes: Stacks of a tile's workers and supervisor.
        control_bytes_per_compute_set: Control code and vertex state of a distinct compute set, a tile.
    """

    name: str
    title: str
    num_ipus: int
    num_tiles: int
    num_workers: int
    clock_hz: float
    tile_memory_bytes: int
    code_region_bytes: int
    amp_macs_half_half: int
    amp_macs_half_float: int
    amp_macs_float: int
    amp_macs_fp8: int
    exchange_bytes_per_cycle: int
    sync_cycles: int
    ipu_sync_cycles: int
    link_bytes_per_cycle: float
    gateway_bytes_per_s: float
    host_bytes_per_s: float
    streaming_bytes_per_s: float
    stack_bytes: int
    control_bytes_per_compute_set: int

    def vector_width(self, device_bytes: int) -> int:
        """Return how many elements of a size fit the 64-bit data path: 4 halves or 2 floats."""
        return max(1, 8 // max(2, device_bytes))


TARGETS: dict[str, Target] = {}


def lookup_target(name: str) -> Target:
    """Return a machine by name.

    Raises:
        OptionsError: No machine has this name.
    """
    if name not in TARGETS:
        raise OptionsError(
            f"unknown target {name!r}{nearest(name, TARGETS)}", option="target", value=name, allowed=", ".join(TARGETS),
        )
    return TARGETS[name]
