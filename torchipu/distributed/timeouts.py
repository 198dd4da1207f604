"""How long processes wait for each other, by variables of the environment.

``TORCHIPU_INIT_TIMEOUT`` is the seconds until all must have come (60), ``TORCHIPU_COLLECTIVE_TIMEOUT`` those that an
exchange may take (300).
"""

from __future__ import annotations

import math
import os

from torchipu.errors import RendezvousError

INIT_TIMEOUT = "TORCHIPU_INIT_TIMEOUT"
COLLECTIVE_TIMEOUT = "TORCHIPU_COLLECTIVE_TIMEOUT"
DEFAULT_SECONDS = {INIT_TIMEOUT: 60.0, COLLECTIVE_TIMEOUT: 300.0}


def seconds_of(variable: str) -> float:
    """Return a time limit in seconds: what a variable of the environment says, or its default.

    Args:
        variable: `INIT_TIMEOUT` or `COLLECTIVE_TIMEOUT`.

    Raises:
        RendezvousError: It holds no positive number.
    """
    text = os.environ.get(variable, "")
    if not text:
        return DEFAULT_SECONDS[variable]
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise RendezvousError(f"{variable} must be a positive number of seconds, got {text!r}")
    return seconds
