"""The gradient of a convolution's input with what follows it: a sum with another gradient, the gradient of a ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torchipu.host.emit import conv_product, pixel_product
from torchipu.host.emit.half_partials import has_half_partials
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.ops.convolution import emit_parameter_gradients, present_results, problem_of
from torchipu.ops.fusions.conv_epilogue import ADD, addend_of, adds_like
from torchipu.ops.fusions.picked import RELU_BACKWARD, are_floats, rounds_once
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.planner import HostPlanner

BACKWARD = "aten.convolution_backward.default"


def _applies(ops: Sequence[Op]) -> bool:
    backward, last = ops[0], ops[-1]
    if not present_results(backward)[0] or has_half_partials(backward) or not (are_floats(ops) or rounds_once(ops)):
        return False
    if any(not adds_like(before, op) for before, op in pairwise(ops) if op.target == ADD):
        return False
    if last.target == RELU_BACKWARD and (
        last.operand("grad_output") is not ops[-2].outputs[0] or last.attrs["threshold"] != 0
    ):
        return False
    problem = problem_of(backward)
    return problem.is_plain and conv_product.serves_input(problem.planar)


def _emit(ops: Sequence[Op], plan: HostPlanner) -> None:
    backward, last = ops[0], ops[-1]
    dy, weight = backward.operand("grad_output"), backward.operand("weight")
    assert dy is not None
    assert weight is not None
    passed = last.operand("self") if last.target == RELU_BACKWARD else None
    addend = plan.value(addend_of(*ops[:2]), DType.FLOAT) if ops[1].target == ADD else None
    gate = plan.value(passed, DType.FLOAT) if passed is not None else None
    out = plan.output(last.outputs[0], DType.FLOAT, rounded_as=backward.outputs[0])
    for product in pixel_product.input_products(problem_of(backward).planar):
        conv_product.emit_product(
            plan, product, out, plan.value(dy, DType.FLOAT), plan.value(weight, DType.FLOAT), addend=addend, gate=gate,
        )
    emit_parameter_gradients(backward, plan)


for _followers in ((ADD,), (RELU_BACKWARD,), (ADD, RELU_BACKWARD)):
    register_fusion(Fusion((BACKWARD, *_followers), _applies, _emit))
