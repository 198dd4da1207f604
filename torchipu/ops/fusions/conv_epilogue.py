"""A convolution with what follows it in inference: normalisation by running statistics, a sum, a ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

from torchipu._kernels.table.conv_product import ConvEnding
from torchipu.host.emit import conv_product
from torchipu.host.emit.conv_weights import weights_as_held
from torchipu.host.emit.half_partials import has_half_partials
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.convolution import problem_of
from torchipu.ops.fusions.picked import RELU, are_floats, rounds_once
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.planner import HostPlanner

CONVOLUTION, NORM = "aten.convolution.default", "aten._native_batch_norm_legit_no_training.default"
ADD = "aten.add.Tensor"


def addend_of(before: Op, add: Op) -> Tensor:
    """Return what is added to the result of the op before."""
    left, right = add.inputs
    return right if left is before.outputs[0] else left


def adds_like(before: Op, add: Op) -> bool:
    """Whether an op adds two different tensors of one shape."""
    if len(add.inputs) != 2 or add.inputs[0] is add.inputs[1] or add.number("alpha", 1) != 1:
        return False
    return all(tensor.shape == add.outputs[0].shape for tensor in add.inputs)


def _applies(ops: Sequence[Op]) -> bool:
    convolution = ops[0]
    if has_half_partials(convolution) or not (are_floats(ops) or rounds_once(ops)):
        return False
    if not all(adds_like(before, op) for before, op in pairwise(ops) if op.target == ADD):
        return False
    problem = problem_of(convolution)
    return problem.is_plain and conv_product.serves(problem.planar)


def _emit(ops: Sequence[Op], plan: HostPlanner) -> None:
    convolution = ops[0]
    x, weight, bias = (convolution.operand(name) for name in ("input", "weight", "bias"))
    assert x is not None
    assert weight is not None
    flags, norm, addend, epsilon = 0, [], None, 0.0
    for before, op in pairwise(ops):
        if op.target == NORM:
            epsilon = float(op.number("eps"))
            scale, shift = op.operand("weight"), op.operand("bias")
            flags |= ConvEnding.HAS_NORM | (ConvEnding.HAS_NORM_WEIGHT if scale is not None else 0)
            flags |= ConvEnding.HAS_NORM_BIAS if shift is not None else 0
            statistics = (op.needed("running_mean"), op.needed("running_var"))
            norm = [plan.value(tensor, DType.FLOAT) for tensor in (*statistics, scale, shift) if tensor is not None]
            for empty in op.outputs[1:]:
                plan.output(empty)
        elif op.target == ADD:
            addend = plan.value(addend_of(before, op), DType.FLOAT)
        else:
            flags |= ConvEnding.IS_RELU
    out = plan.output(ops[-1].outputs[0], DType.FLOAT, rounded_as=convolution.outputs[0])
    conv_product.emit_convolution(
        plan, problem_of(convolution).planar, out, plan.value(x, DType.FLOAT), weights_as_held(plan, weight),
        bias=plan.value(bias, DType.FLOAT) if bias is not None else None, norm=norm, addend=addend, flags=flags,
        epsilon=epsilon,
    )


for _followers in product((NORM, ""), (ADD, ""), (RELU, "")):
    if any(_followers):
        register_fusion(Fusion((CONVOLUTION, *(target for target in _followers if target)), _applies, _emit))
