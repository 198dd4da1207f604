"""A normalisation by running statistics or over groups, and the activation after it, with channels in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchipu._kernels.table.conv_blocked import Activation
from torchipu._kernels.table.conv_product import ConvEnding
from torchipu.host.emit import group_norm_blocked, pool_blocked
from torchipu.host.emit.conv_blocked import Ending, OpRounding
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.blocked.activations import activation_of, is_of_floats
from torchipu.ops.blocked.halves import op_rounding
from torchipu.optable.blocked import BlockedForm, BlockedPlanner, Rows, register_blocked, saves_nothing
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

NORM, GROUP_NORM = "aten._native_batch_norm_legit_no_training.default", "aten.native_group_norm.default"


def norm_of(op: Op, plan: HostPlanner) -> tuple[int, list[HostTensor], float]:
    """Return what `Ending` takes of a normalisation: flags, operands and its epsilon; its empty results are made."""
    scale, shift = op.operand("weight"), op.operand("bias")
    flags = ConvEnding.HAS_NORM | (ConvEnding.HAS_NORM_WEIGHT if scale is not None else 0)
    flags |= ConvEnding.HAS_NORM_BIAS if shift is not None else 0
    statistics = (op.needed("running_mean"), op.needed("running_var"))
    for empty in op.outputs[1:]:
        plan.output(empty)
    operands = [plan.value(tensor, DType.FLOAT) for tensor in (*statistics, scale, shift) if tensor is not None]
    return flags, operands, float(op.number("eps"))


def _serves(op: Op, rows: Rows) -> bool:
    return is_of_floats(op, rows) and prod(op.outputs[0].shape) > 0


def _follows(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    return len(ops) == 1 and is_of_floats(after, rows) and activation_of(after) is not Activation.NONE


def _activation_and_rounding(ops: Sequence[Op], plan: BlockedPlanner) -> tuple[Activation, OpRounding | None]:
    """Return the activation behind a normalisation, and how its results become half."""
    activation = activation_of(ops[-1])
    return activation, None if activation is Activation.NONE else op_rounding(ops[-1], plan)


def _emit(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    flags, norm, epsilon = norm_of(ops[0], plan)
    activation, ends = _activation_and_rounding(ops, plan)
    rounded = (None, op_rounding(ops[0], plan), None, ends)
    ending = Ending(norm=norm, flags=flags, epsilon=epsilon, activation=activation, rounded=rounded)
    result = ops[-1].outputs[0]
    source = plan.blocked(ops[0].needed("input"))
    pool_blocked.emit_end(plan, result.shape, plan.blocked_output(result), source, ending)


def _emit_over_groups(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    op, result = ops[0], ops[-1].outputs[0]
    activation, ends = _activation_and_rounding(ops, plan)
    ending = Ending(activation=activation, rounded=(op_rounding(op, plan), None, None, ends))
    factors = [op.operand(name) for name in ("weight", "bias")]
    weight, bias = (None if factor is None else plan.value(factor, DType.FLOAT) for factor in factors)
    mean, rstd = (plan.output(statistic, DType.FLOAT) for statistic in op.outputs[1:])
    source = plan.blocked(op.needed("input"))
    group_norm_blocked.emit(
        plan, plan.image_sizes(result), op.integer("group"), plan.blocked_output(result), source, (mean, rstd), weight,
        bias, float(op.number("eps")), ending,
    )


def _source(ops: Sequence[Op]) -> Sequence[Tensor]:
    return (ops[0].needed("input"),)


register_blocked(NORM, BlockedForm(_serves, _follows, _source, saves_nothing, _emit))
register_blocked(
    GROUP_NORM, BlockedForm(_serves, _follows, _source, saves_nothing, _emit_over_groups, makes_others=True),
)
