"""What machine there is: the emulated one, which answers as a Mk2 would."""

from __future__ import annotations

EMULATED_VERSION = 2


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return whether so many IPUs can be had; the emulated machine counts, since programs ask before they run.

    Args:
        num_ipus: How many.
    """
    from torchipu.options import Options  # here, since importing poptorch shall not build the machines
    from torchipu.target import lookup_target

    return 0 < num_ipus <= lookup_target(Options(target=f"mk{EMULATED_VERSION}").target).num_ipus


def ipuHardwareVersion() -> int:
    """Return the generation of the IPUs: that of the emulated machine."""
    return EMULATED_VERSION
