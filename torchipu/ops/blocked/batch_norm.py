"""A batch normalisation in training, with a sum and an activation after it, and its gradient, channels in blocks.

Both have the bits of the row-major forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torchipu._kernels.table.conv_blocked import Activation
from torchipu._kernels.table.norm import BatchScalars, NormScalars
from torchipu.host.emit import batch_norm_blocked, pool_blocked
from torchipu.host.emit.conv_blocked import Ending, OpRounding
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.blocked.activations import activation_of, is_of_floats
from torchipu.ops.blocked.halves import emit_rounded, op_rounding
from torchipu.ops.fusions.conv_epilogue import ADD, addend_of, adds_like
from torchipu.ops.fusions.norm_epilogue import NORMS
from torchipu.ops.norm import Batch, present_outputs, trains
from torchipu.optable.blocked import BlockedForm, BlockedPlanner, Rows, follows_nothing, register_blocked, saves_nothing
from torchipu.optable.host_tensor import HostTensor

GRADIENT = "aten.native_batch_norm_backward.default"


def _serves(op: Op, rows: Rows) -> bool:
    return is_of_floats(op, rows) and trains(op) and _has_planes(op)


def _has_planes(op: Op) -> bool:
    """Whether there are planes of several pixels: those of one are rows of channels, which are summed as such."""
    shape = op.needed("input").shape
    return len(shape) == 4 and prod(shape) > 0 and prod(shape[2:]) > 1


def _follows(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    if not is_of_floats(after, rows) or activation_of(ops[-1]) is not Activation.NONE:
        return False
    if after.target == ADD:
        return len(ops) == 1 and adds_like(ops[-1], after)
    return activation_of(after) is not Activation.NONE


def _addend(ops: Sequence[Op]) -> Tensor | None:
    return next((addend_of(before, op) for before, op in pairwise(ops) if op.target == ADD), None)


def _sources(ops: Sequence[Op]) -> Sequence[Tensor]:
    addend = _addend(ops)
    return (ops[0].needed("input"), *([] if addend is None else [addend]))


def _rounded(ops: Sequence[Op], plan: BlockedPlanner) -> list[OpRounding | None]:
    """Return how results become half, in the order in which an ending has them."""
    added = next((op for op in ops if op.target == ADD), None)
    ends = op_rounding(ops[-1], plan) if activation_of(ops[-1]) is not Activation.NONE else None
    return [None, op_rounding(ops[0], plan), None if added is None else op_rounding(added, plan), ends]


def _float_or(plan: BlockedPlanner, tensor: Tensor | None, absent: HostTensor) -> HostTensor:
    """Return a float value; for an absent one anything, which the kernels do not read."""
    return absent if tensor is None else plan.value(tensor, DType.FLOAT)


def _emit(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    op, result = ops[0], ops[-1].outputs[0]
    x, addend = plan.blocked(op.needed("input")), _addend(ops)
    added = None if addend is None else plan.blocked(addend)
    mean, rstd = (plan.output(statistic, DType.FLOAT) for statistic in op.outputs[1:3])
    running = [op.operand("running_mean"), op.operand("running_var")]
    has_running = running[0] is not None and len(op.outputs) == 5
    new = [plan.output(tensor, DType.FLOAT) for tensor in op.outputs[3:]] if has_running else [mean, rstd]
    weight, bias = (op.operand(name) for name in ("weight", "bias"))
    ints = Batch(op.needed("input").shape).ints._replace(
        has_weight=weight is not None, has_bias=bias is not None, has_running=has_running,
    )
    scalars = BatchScalars(float(op.number("eps")), float(op.number("momentum")))
    old = [_float_or(plan, tensor, x) for tensor in running]
    batch_norm_blocked.emit_statistics(plan, ints, scalars, [mean, rstd, *new], x, old)
    factors = [_float_or(plan, tensor, x) for tensor in (weight, bias)]
    ending = Ending(
        affine=batch_norm_blocked.emit_factors(plan, ints, [mean, rstd], factors), addend=added,
        activation=activation_of(ops[-1]), rounded=_rounded(ops, plan),
    )
    pool_blocked.emit_end(plan, result.shape, plan.blocked_output(result), x, ending)


def _serves_gradient(op: Op, rows: Rows) -> bool:
    return is_of_floats(op, rows) and _has_planes(op) and present_outputs(op, 3)[0] is not None


def _gradient_sources(ops: Sequence[Op]) -> Sequence[Tensor]:
    return (ops[0].needed("grad_out"), ops[0].needed("input"))


def _emit_gradient(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    op = ops[-1]
    dy, x = (plan.blocked(tensor) for tensor in _gradient_sources(ops))
    train, weight = op.flag("train"), op.operand("weight")
    names = ("save_mean", "save_invstd") if train else ("running_mean", "running_var")
    statistics = [plan.value(op.needed(name), DType.FLOAT) for name in names]
    batch = Batch(op.needed("input").shape)
    ints = batch.ints._replace(has_weight=weight is not None, from_running=not train)
    others = [
        plan.scratch((batch.channels,)) if grad is None else plan.output(grad, DType.FLOAT)
        for grad in present_outputs(op, 3)[1:]
    ]
    scalars, factor = NormScalars(float(op.number("eps"))), _float_or(plan, weight, x)

    def emit(dx: HostTensor) -> None:
        batch_norm_blocked.emit_gradient(plan, ints, scalars, [dx, *others], dy, x, statistics, factor)

    emit_rounded(op, plan, emit)


for _norm in NORMS:
    register_blocked(
        _norm, BlockedForm(_serves, _follows, _sources, saves_nothing, _emit, makes_others=True, is_exact=True),
    )
register_blocked(
    GRADIENT,
    BlockedForm(
        _serves_gradient, follows_nothing, _gradient_sources, saves_nothing, _emit_gradient, makes_others=True,
        is_exact=True,
    ),
)
