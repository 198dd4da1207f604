"""What machine there is: the emulated one, which answers as a Mk2 would."""

from __future__ import annotations

EMULATED_VERSION = 2


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return whether so many IPUs can be had; the emulated machine counts, since programs ask before they run.

    Args:
        num_ipus: How many.
    """
    from torchipu.target import lookup_target  # here, since importing poptorch shall not build the machines

    return 0 < num_ipus <= lookup_target(f"mk{EMULATED_VERSION}").num_ipus


def ipuHardwareVersion() -> int:
    """Return the generation of the IPUs: that of the emulated machine."""
    return EMULATED_VERSION
