"""Half results of ops that are computed with channels in blocks: they lie there as floats that are halves' values."""

from __future__ import annotations

from collections.abc import Callable

from torchipu._kernels.table.conv_blocked import Activation
from torchipu.host.emit.conv_blocked import Ending, OpRounding
from torchipu.host.emit.pool_blocked import emit_end
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.ops.blocked.activations import activation_of
from torchipu.optable.blocked import BlockedPlanner
from torchipu.optable.host_tensor import HostTensor

EXACT = (Activation.RELU, Activation.RELU6)
"""Activations that give halves of halves."""


def op_rounding(op: Op, plan: BlockedPlanner) -> OpRounding | None:
    """Return how the first result of an op is rounded; None where nothing has to be."""
    result = op.outputs[0]
    if result.dtype is not DType.HALF or activation_of(op) in EXACT:
        return None
    return OpRounding(plan.rounding(op, result), plan.has_channels_last(result))


def emit_rounded(op: Op, plan: BlockedPlanner, emit: Callable[[HostTensor], None]) -> None:
    """Emit the first result of an op in blocks, and its rounding as a step behind.

    Args:
        op: Whose result.
        plan: The planner.
        emit: Emits the result as floats.
    """
    result = op.outputs[0]
    out, rounding = plan.blocked_output(result), op_rounding(op, plan)
    if rounding is None:
        emit(out)
        return
    computed = plan.scratch(out.shape)
    emit(computed)
    emit_end(plan, plan.image_sizes(result), out, computed, Ending(rounded=[rounding]))

