"""What the kernels of this machine compute with: how long vectors are, and whether it multiplies bfloats."""

from __future__ import annotations

import ctypes
from functools import cache

from torchipu._kernels.abi import HAS_BFLOATS, call_kernel
from torchipu._kernels.table.blocked_layout import VECTOR_LANES


@cache
def vector_lanes() -> int:
    """Return how many floats a vector of this machine holds."""
    lanes = ctypes.c_int64()
    call_kernel(VECTOR_LANES, [ctypes.addressof(lanes)])
    return lanes.value


def has_bfloat_products() -> bool:
    """Return whether this machine multiplies pairs of bfloat16, and the kernels were built for that."""
    return HAS_BFLOATS
