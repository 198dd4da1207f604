"""Ops that make zero of some halves and leave others as they are: rounding may as well come after them."""

from __future__ import annotations

from collections.abc import Sequence

from torchipu.ir.graph import Op
from torchipu.ir.types import DType

RELU, RELU_BACKWARD = "aten.relu.default", "aten.threshold_backward.default"


def are_floats(ops: Sequence[Op]) -> bool:
    """Whether all that ops read, and their first results, are floats."""
    return all(tensor.dtype is DType.FLOAT for op in ops for tensor in (*op.inputs, op.outputs[0]))


def rounds_once(ops: Sequence[Op]) -> bool:
    """Whether the first of some ops makes halves, of which the others only pick: its rounding, after them, is all.

    A ReLU makes zero of a negative value, rounded or not, but not of the NaN that an overflow may become.
    """
    first, *others = ops
    if first.outputs[0].dtype is not DType.HALF or any(op.outputs[0].dtype is not DType.HALF for op in others):
        return False
    is_nan = first.text("half_overflow", "infinity") == "nan"
    return all(op.target == RELU_BACKWARD or (op.target == RELU and not is_nan) for op in others)
