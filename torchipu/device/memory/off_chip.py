"""What lies in Streaming Memory, and whether machines have that much."""

from __future__ import annotations

from torchipu.ir.program import Executable
from torchipu.target import Target


def off_chip_bytes(executable: Executable) -> tuple[int, ...]:
    """Return the bytes of each IPU of a replica in Streaming Memory."""
    held = [0] * executable.num_ipus
    for variable in executable.variables:
        if variable.off_chip:
            held[variable.ipu] += variable.device_bytes * variable.depth
    return tuple(held)


def lacking_off_chip_bytes(executable: Executable, target: Target) -> int:
    """Return the bytes of Streaming Memory that the fullest machine lacks; 0 where all fits.

    The IPUs of a replica follow each other, and replicas too, from machine to machine; those of a machine share its
    Streaming Memory.

    Args:
        executable: From the lower pass.
        target: The machine.
    """
    held = off_chip_bytes(executable)
    if not any(held):
        return 0
    by_ipu = held * (executable.replicas * executable.instances)
    size = target.ipus_per_machine
    fullest = max(sum(by_ipu[first : first + size]) for first in range(0, len(by_ipu), size))
    return max(0, fullest - target.machine_streaming_bytes)
