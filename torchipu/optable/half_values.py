"""Which values of a chain are those of halves without rounding: what is chosen from halves, or loses bits alone.

Nothing is discarded where such a value becomes half, so that no random bits decide about it, and no rounding is needed
for those who read it within the chain.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from torchipu.ir.size import Size
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor

KEEPING: Mapping[str, tuple[int, ...]] = {
    # The result is an operand, its magnitude or its opposite, or one of a few small numbers; or, as of floor and
    # frac, has no bits that the operand has not: halves from 1024 on are whole.
    **dict.fromkeys((
        "f_copy", "f_neg", "f_abs", "f_sign", "f_max", "f_min", "f_fmax", "f_fmin", "f_relu", "f_where", "f_copysign",
        "f_floor", "f_ceil", "f_round", "f_trunc", "f_frac", "f_heaviside", "f_threshold_grad", "f_hardtanh_grad",
        "f_hardshrink", "f_shrink_grad",
    ), ()),
    "f_clamp": (0, 1), "f_clamp_min": (0,), "f_clamp_max": (0,), "f_threshold": (1,), "f_nan_to_num": (0, 1, 2),
}
"""By instruction the places of those of its scalars that may become the result; the others only decide."""
ROUNDED = frozenset(("f_round_half", "f_round_by"))
OF_BOOLS = frozenset(("f_from_b",))


def is_half(number: float | Size) -> bool:
    """Return whether a half holds a number: NaN and infinities are such; of one computed of sizes nobody knows."""
    if isinstance(number, Size):
        return False
    if not math.isfinite(number):
        return True
    try:
        return bool(struct.unpack("<e", struct.pack("<e", number))[0] == number)
    except OverflowError:
        return False


def is_half_valued(
    operation: str, scalars: Sequence[float], operands: Sequence[bool], memory: HostTensor | None = None,
    constant: float | None = None,
) -> bool:
    """Return whether a float of a chain is one that a half holds.

    Args:
        operation: The instruction that makes it; empty for one that is read or constant.
        scalars: Of the instruction.
        operands: Whether each float that the instruction reads is such a one.
        memory: Where it is read.
        constant: Its value where that is known.
    """
    if memory is not None:
        return memory.dtype in (DType.HALF, DType.BOOL)
    if constant is not None:
        return is_half(constant)
    if operation in ROUNDED or operation in OF_BOOLS:
        return True
    chosen = KEEPING.get(operation)
    return chosen is not None and all(operands) and all(is_half(scalars[place]) for place in chosen)
