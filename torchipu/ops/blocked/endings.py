"""What follows a convolution or a linear layer where views may stand between: a factor, a sum, an activation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torchipu._kernels.table.conv_blocked import Activation
from torchipu.host.emit.conv_blocked import OpRounding
from torchipu.ir.graph import Op, Tensor
from torchipu.ops.blocked.activations import activation_of, is_floating
from torchipu.ops.blocked.halves import op_rounding
from torchipu.ops.blocked.norm import NORM
from torchipu.ops.blocked.views import is_view, without_views
from torchipu.optable.blocked import BlockedPlanner, Rows

MUL, ADD = "aten.mul.Tensor", "aten.add.Tensor"


def _other(before: Op, op: Op) -> Tensor:
    """Return the operand of a sum or product of two that the op before has not made."""
    left, right = op.inputs
    return right if left is before.outputs[0] else left


def _is_factor(before: Op, op: Op, rows: Rows) -> bool:
    """Whether each channel is multiplied by a number."""
    if op.target != MUL or len(op.inputs) != 2 or op.inputs[0] is op.inputs[1]:
        return False
    factor, result = _other(before, op), op.outputs[0]
    channels, at = (result.shape[-1], -1) if result in rows else (result.shape[1], -3)
    if before.outputs[0].shape != result.shape or prod(factor.shape) != channels:
        return False
    return len(factor.shape) >= -at and factor.shape[at] == channels


def _is_sum(before: Op, op: Op, rows: Rows) -> bool:
    """Whether another value of the same images, which shows them alike, is added."""
    if op.target != ADD or len(op.inputs) != 2 or op.inputs[0] is op.inputs[1] or op.number("alpha", 1) != 1:
        return False
    result, other = op.outputs[0], _other(before, op)
    alike = other.shape == before.outputs[0].shape == result.shape
    return alike and rows.get(other) == rows.get(before.outputs[0])


def goes_on(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    """Whether an op goes on: views anywhere, the factors first, then the sum, then the activation."""
    if is_view(after, rows):
        return True
    before, targets, result = ops[-1], [op.target for op in without_views(ops)], after.outputs[0]
    if not is_floating(*after.inputs, result) or not (result in rows or len(result.shape) == 4):
        return False
    if any(activation_of(op) is not Activation.NONE for op in ops):
        return False
    if _is_factor(before, after, rows):
        return len(targets) == 1
    if _is_sum(before, after, rows):
        return ADD not in targets
    return activation_of(after) is not Activation.NONE


def addend_of(ops: Sequence[Op]) -> Tensor | None:
    """Return what is added to the results."""
    return next((_other(before, op) for before, op in pairwise(ops) if op.target == ADD), None)


def factor_of(ops: Sequence[Op]) -> Tensor | None:
    """Return the numbers by which channels are multiplied."""
    return next((_other(before, op) for before, op in pairwise(ops) if op.target == MUL), None)


def activation_in(ops: Sequence[Op]) -> Activation:
    """Return the activation among the ops of a run."""
    return next((found for op in ops[1:] if (found := activation_of(op)) is not Activation.NONE), Activation.NONE)


def rounded_in(ops: Sequence[Op], plan: BlockedPlanner) -> list[OpRounding | None]:
    """Return how the results of the ops of a run become half, in the order in which an ending has them."""
    rounded: list[OpRounding | None] = [op_rounding(ops[0], plan), None, None, None]
    for op in without_views(ops[1:]):
        rounded[{NORM: 1, MUL: 1, ADD: 2}.get(op.target, 3)] = op_rounding(op, plan)
    return rounded
