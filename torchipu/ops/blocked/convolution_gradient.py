"""The gradients of a convolution with channels in blocks, and what follows that of the input: a sum, that of a ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torchipu.host.emit import (
    bfloat_conv,
    conv_blocked,
    conv_weight_blocked,
    depthwise_blocked,
    winograd,
    winograd_weight,
)
from torchipu.host.emit.conv_blocked import OpRounding
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.conv_weights import weights_as_held
from torchipu.host.emit.half_partials import has_half_partials
from torchipu.host.emit.vectors import vector_lanes
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.blocked.activations import is_floating, is_of_floats
from torchipu.ops.blocked.convolution import (
    BLOCKED_NS,
    PLAIN_NS,
    bfloat_gain_ns,
    depthwise_gain_ns,
    emit_convolution,
    emit_input_gradient,
    grouped_gain_ns,
    input_gain_ns,
    product_gain_ns,
)
from torchipu.ops.blocked.halves import op_rounding
from torchipu.ops.convolution import (
    Problem,
    emit_parameter_gradients,
    is_bfloat_product,
    present_results,
    problem_of,
    weight_gradient,
)
from torchipu.ops.fusions.conv_epilogue import ADD, addend_of, adds_like
from torchipu.ops.fusions.conv_gradient_epilogue import BACKWARD
from torchipu.ops.fusions.picked import RELU_BACKWARD
from torchipu.optable.blocked import BlockedForm, BlockedPlanner, Rows, Terms, register_blocked
from torchipu.optable.host_tensor import HostTensor

# As `DEPTHWISE_ROW_NS` and what stands beside it there, of the gradient of the weights.
DEPTHWISE_WEIGHT_ROW_NS, DEPTHWISE_WEIGHT_NS = 8.0, 0.1
# As `GROUPED_STRIDED_NS`, of a gradient: without strides, and with them of the input and of the weights.
GROUPED_LEVEL_NS, GROUPED_PHASES_NS, GROUPED_STRIDED_NS = 0.005, 0.02, 0.015
DEPTHWISE_PHASES_NS = 0.4  # of an element of the input that the plain form writes phase by phase, with strides


def _shape(op: Op) -> Shape:
    return problem_of(op).planar


def _weight_gain_ns(s: Shape, *, is_strict: bool) -> float:
    """Return what blocks save of the gradient of the weights; the kernels take channels by halves of a vector."""
    if depthwise_blocked.serves(s):
        return DEPTHWISE_WEIGHT_ROW_NS * s.n * s.g * s.h + DEPTHWISE_WEIGHT_NS * (s.input_elements + s.output_elements)
    lanes = vector_lanes()
    padded = -(-s.ic // (lanes // 2)) * (lanes // 2) / s.ic * (-(-s.oc // lanes) * lanes / s.oc)
    gain = s.macs * (PLAIN_NS - BLOCKED_NS * padded) * 8 / lanes
    gain += grouped_gain_ns(s, GROUPED_LEVEL_NS, GROUPED_STRIDED_NS)
    return gain + (max(0.0, winograd_weight.saved_ns(s)) if winograd.serves(s) and not is_strict else 0.0)


def _weight_in_blocks(op: Op) -> bool:
    """Whether the gradient of the weights is computed in blocks where that of the input is."""
    return weight_gradient(op) is not None and _weight_gain_ns(_shape(op), is_strict=True) > 0


def _serves(op: Op, rows: Rows) -> bool:
    tensors = [op.needed(name) for name in ("grad_output", "input", "weight")]
    if any(t in rows or len(t.shape) != 4 for t in tensors) or not is_floating(*tensors) or has_half_partials(op):
        return False
    problem = problem_of(op)
    if not problem.is_planar:
        return False
    if depthwise_blocked.serves(problem.planar):
        return not problem.is_transposed
    if not present_results(op)[0]:
        return conv_blocked.serves(problem.planar) and _weight_in_blocks(op)
    serves = conv_blocked.serves if problem.is_transposed else conv_blocked.serves_input
    return serves(problem.planar) and _input_gain_ns(problem, Terms()) > 0


def _follows(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    """Whether an op goes on: a sum with another gradient first, then the gradient of a ReLU."""
    if not is_of_floats(after, rows) or ops[-1].target == RELU_BACKWARD or after.leg is not ops[0].leg:
        return False
    if after.target == ADD:
        return ops[-1].target != ADD and adds_like(ops[-1], after)
    return after.target == RELU_BACKWARD and _hands_on(ops[-1], after)


def _hands_on(before: Op, after: Op) -> bool:
    """Whether the gradient of a ReLU is that of what the op before has made."""
    gate = after.needed("self")
    is_next = after.operand("grad_output") is before.outputs[0] and gate is not before.outputs[0]
    return is_next and after.attrs["threshold"] == 0 and gate.shape == after.outputs[0].shape


def _added_and_gate(ops: Sequence[Op]) -> tuple[Tensor | None, Tensor | None]:
    addend = next((addend_of(before, op) for before, op in pairwise(ops) if op.target == ADD), None)
    return addend, ops[-1].needed("self") if ops[-1].target == RELU_BACKWARD else None


def _sources(ops: Sequence[Op]) -> Sequence[Tensor]:
    others = [*_added_and_gate(ops), ops[0].needed("input") if _weight_in_blocks(ops[0]) else None]
    return [ops[0].needed("grad_output"), *(tensor for tensor in others if tensor is not None)]


def _result(ops: Sequence[Op]) -> Tensor | None:
    """Return what follows the gradient of the input, or that itself."""
    return ops[-1].outputs[0] if present_results(ops[0])[0] else None


def _input_gain_ns(problem: Problem, terms: Terms) -> float:
    s = problem.planar
    if problem.is_transposed:
        return product_gain_ns(s, s.g * s.oc * s.summands, terms)
    if depthwise_blocked.serves(s):
        return depthwise_gain_ns(s) + (DEPTHWISE_PHASES_NS * s.input_elements if s.sh * s.sw > 1 else 0.0)
    return input_gain_ns(s, terms) + grouped_gain_ns(s, GROUPED_LEVEL_NS, GROUPED_PHASES_NS)


def _gain_ns(ops: Sequence[Op], terms: Terms) -> float:
    problem, gain = problem_of(ops[0]), 0.0
    is_of_bfloats = len(ops) == 1 and is_bfloat_product(ops[0])
    if present_results(ops[0])[0]:
        gain += _input_gain_ns(problem, terms)
        if is_of_bfloats and bfloat_conv.serves_gradients(problem.planar):
            gain -= bfloat_gain_ns(problem.planar, terms)
    if _weight_in_blocks(ops[0]):
        gain += _weight_gain_ns(problem.planar, is_strict=terms.is_strict)
        if is_of_bfloats and bfloat_conv.serves_weight(problem.planar):
            gain -= bfloat_gain_ns(problem.planar, terms)
    return gain


def _rounded(ops: Sequence[Op], plan: BlockedPlanner) -> list[OpRounding | None]:
    """Return how results become half, in the order in which an ending has them; what a ReLU lets pass is half."""
    added = next((op for op in ops if op.target == ADD), None)
    return [op_rounding(ops[0], plan), None, None if added is None else op_rounding(added, plan), None]


def _emit(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    backward, problem = ops[0], problem_of(ops[0])
    s = problem.planar
    addend, gate = (None if tensor is None else plan.blocked(tensor) for tensor in _added_and_gate(ops))
    result, dy = _result(ops), plan.blocked(backward.needed("grad_output"))
    if result is not None and plan.wanted(result):
        weight = weights_as_held(plan, backward.needed("weight"))
        ending = conv_blocked.Ending(addend=addend, gate=gate, rounded=_rounded(ops, plan))
        _emit_input_gradient(plan, problem, plan.blocked_output(result), dy, weight, ending)
    dw, in_blocks = weight_gradient(backward), _weight_in_blocks(backward)
    if dw is not None and in_blocks and plan.wanted(dw):
        pair = dy, plan.blocked(backward.needed("input"))
        first, second = reversed(pair) if problem.is_transposed else pair
        _emit_weight_gradient(plan, s, plan.output(dw, DType.FLOAT), first, second)
    emit_parameter_gradients(backward, plan, has_weight=not in_blocks)


def _emit_input_gradient(
    plan: BlockedPlanner, problem: Problem, dx: HostTensor, dy: HostTensor, weight: HostTensor,
    ending: conv_blocked.Ending,
) -> None:
    s = problem.planar
    if problem.is_transposed:
        emit_convolution(plan, s, dx, dy, weight, ending)
    elif depthwise_blocked.serves(s):
        depthwise_blocked.emit_input_gradient(plan, s, dx, dy, weight, ending)
    else:
        emit_input_gradient(plan, s, dx, dy, weight, ending)


def _emit_weight_gradient(plan: BlockedPlanner, s: Shape, dw: HostTensor, dy: HostTensor, x: HostTensor) -> None:
    """Emit the gradient of the weights of a plain convolution of these sizes."""
    if depthwise_blocked.serves(s):
        depthwise_blocked.emit_weight_gradient(plan, s, dw, dy, x)
        return
    is_transformed = not plan.terms.is_strict and winograd.serves(s) and winograd_weight.saved_ns(s) > 0
    (winograd_weight.emit if is_transformed else conv_weight_blocked.emit)(plan, s, dw, dy, x)


register_blocked(
    BACKWARD,
    BlockedForm(_serves, _follows, _sources, _gain_ns, _emit, _result, makes_others=True, reads_rows=lambda ops: False),
)
