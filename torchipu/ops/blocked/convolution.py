"""A convolution and what follows it, with channels in blocks: a normalisation, a sum, an activation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torchipu._kernels.table.conv_blocked import Activation
from torchipu.host.emit import conv_blocked, depthwise_blocked, winograd
from torchipu.host.emit.blocked_layout import vector_lanes
from torchipu.host.emit.conv_shape import Shape
from torchipu.ir.graph import Op, Tensor
from torchipu.ops.blocked.activations import activation_of, is_of_floats
from torchipu.ops.blocked.norm import NORM, norm_of
from torchipu.ops.convolution import problem_of
from torchipu.ops.fusions.conv_epilogue import ADD, CONVOLUTION, RELU, addend_of, adds_like
from torchipu.optable.blocked import BlockedForm, BlockedPlanner, Rows, register_blocked
from torchipu.optable.host_tensor import HostTensor

# Measured with vectors of eight lanes; both scale with them.
PLAIN_NS, BLOCKED_NS = 0.0345, 0.0265  # of a multiplication and addition
DEPTHWISE_NS = 0.5  # saved for a result whose group has one channel
ACTIVATION_NS = 0.4  # for an element, where it would be a pass of its own


def _shape(op: Op) -> Shape:
    return problem_of(op).planar


def _serves(op: Op, rows: Rows) -> bool:
    if not is_of_floats(op, rows) or not problem_of(op).is_plain:
        return False
    s = _shape(op)
    return depthwise_blocked.serves(s) or conv_blocked.serves(s)


def _follows(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    """Whether an op goes on: the normalisation first, then the sum, then the activation."""
    if not is_of_floats(after, rows) or activation_of(ops[-1]) is not Activation.NONE:
        return False
    if after.target == NORM:
        return len(ops) == 1
    if after.target == ADD:
        return ops[-1].target != ADD and adds_like(ops[-1], after)
    return activation_of(after) is not Activation.NONE


def _addend(ops: Sequence[Op]) -> Tensor | None:
    return next((addend_of(before, op) for before, op in pairwise(ops) if op.target == ADD), None)


def _sources(ops: Sequence[Op]) -> Sequence[Tensor]:
    addend = _addend(ops)
    return (ops[0].needed("input"), *([] if addend is None else [addend]))


def _reads_plain(s: Shape) -> bool:
    """Whether the kernel reads a row-major input: so few channels fill a block badly, or each is laid out anyhow."""
    return s.ic * s.g <= vector_lanes() and not depthwise_blocked.serves(s)


def _gain_ns(ops: Sequence[Op]) -> float:
    s, lanes = _shape(ops[0]), vector_lanes()
    ended = ACTIVATION_NS * s.output_elements if ops[-1].target != RELU and len(ops) > 1 else 0.0
    if depthwise_blocked.serves(s):
        return DEPTHWISE_NS * s.output_elements + ended
    padded = -(-s.oc // lanes) * lanes / s.oc
    return s.macs * (PLAIN_NS - BLOCKED_NS * padded) * 8 / lanes + ended


def _emit(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    convolution, s = ops[0], _shape(ops[0])
    x, weight, bias = convolution.needed("input"), convolution.needed("weight"), convolution.operand("bias")
    addend = _addend(ops)
    flags, epsilon = 0, 0.0
    norm: list[HostTensor] = []
    if len(ops) > 1 and ops[1].target == NORM:
        flags, norm, epsilon = norm_of(ops[1], plan)
    ending = conv_blocked.Ending(
        bias=None if bias is None else plan.value(bias), norm=norm,
        addend=None if addend is None else plan.blocked(addend), flags=flags, epsilon=epsilon,
        activation=activation_of(ops[-1]),
    )
    is_plain = _reads_plain(s) and not plan.is_blocked(x)
    out, held = plan.blocked_output(ops[-1].outputs[0]), plan.value(weight)
    source = plan.value(x) if is_plain else plan.blocked(x)
    if not (is_plain or plan.is_strict) and winograd.serves(s) and winograd.saved_ns(s) > 0:
        winograd.emit(plan, s, out, source, held, ending)
        return
    emit = depthwise_blocked.emit if depthwise_blocked.serves(s) else conv_blocked.emit
    emit(plan, s, out, source, held, ending, is_plain=is_plain)


register_blocked(CONVOLUTION, BlockedForm(_serves, _follows, _sources, _gain_ns, _emit))
