"""How long the vectors are that the kernels of this machine compute with."""

from __future__ import annotations

import ctypes
from functools import cache

from torchipu._kernels.abi import call_kernel
from torchipu._kernels.table.blocked_layout import VECTOR_LANES


@cache
def vector_lanes() -> int:
    """Return how many floats a vector of this machine holds."""
    lanes = ctypes.c_int64()
    call_kernel(VECTOR_LANES, [ctypes.addressof(lanes)])
    return lanes.value
