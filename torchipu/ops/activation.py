"""Activations and their gradients: how each enters a fused chain, and what it costs."""

from __future__ import annotations

import dataclasses
import math

from torchipu.device.codelets import SOFTPLUS, vector_codelet
from torchipu.device.compute_sets import linear_vertices
from torchipu.device.tilings.gates import gated, gated_gradient
from torchipu.ir.graph import Op
from torchipu.ops.elementwise import (
    MULTIPLY_ADD,
    SELECT,
    clamp,
    estimated_map,
    parametrised,
    register_maps,
    result_class,
    unary,
    vector_map,
)
from torchipu.optable.chain import Chain, Value
from torchipu.optable.emission import emit_results
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import OpSpec, register


def gelu(chain: Chain, op: Op) -> Value:
    """GELU, by the error function or by tanh."""
    name = "f_gelu_tanh" if op.text("approximate", None) == "tanh" else "f_gelu"
    return chain.run(name, chain.argument(op, "self", "f"))


def gelu_backward(chain: Chain, op: Op) -> Value:
    """Gradient of GELU."""
    name = "f_gelu_tanh_grad" if op.text("approximate", None) == "tanh" else "f_gelu_grad"
    return chain.run(name, chain.argument(op, "grad_output", "f"), chain.argument(op, "self", "f"))


def elu_backward(chain: Chain, op: Op) -> Value:
    """Gradient of ELU from its operand or from its result."""
    name = "f_elu_result_grad" if op.flag("is_result") else "f_elu_grad"
    scalars = [op.number(name) for name in ("alpha", "scale", "input_scale")]
    return chain.run(
        name, chain.argument(op, "grad_output", "f"), chain.argument(op, "self_or_result", "f"), scalars=scalars,
    )


def relu(chain: Chain, op: Op) -> Value:
    """Raise negative numbers to zero."""
    if result_class(op) == "f":
        return chain.run("f_relu", chain.argument(op, "self", "f"))
    return chain.run("l_max", chain.argument(op, "self", "l"), chain.scalar(0, "l"))


def threshold(chain: Chain, op: Op) -> Value:
    """Replace what does not exceed a threshold."""
    if result_class(op) == "f":
        scalars = (op.number("threshold"), op.number("value"))
        return chain.run("f_threshold", chain.argument(op, "self", "f"), scalars=scalars)
    value = chain.argument(op, "self", "l")
    limit, other = (chain.scalar(op.number(name), "l") for name in ("threshold", "value"))
    return chain.run("l_where", chain.run("b_le_l", value, limit), other, value)


def celu(chain: Chain, op: Op) -> Value:
    """ELU whose slope is continuous for every alpha."""
    alpha = op.number("alpha")
    return chain.run("f_elu", chain.argument(op, "self", "f"), scalars=(alpha, 1.0, 1.0 / alpha))


def prelu_backward(chain: Chain, op: Op) -> tuple[Value, Value]:
    """Gradients of PReLU with respect to its operand and, before its sum, its weight."""
    gradient, value, weight = (chain.argument(op, name, "f") for name in ("grad_output", "self", "weight"))
    return (
        chain.run("f_prelu_grad", gradient, value, weight), chain.run("f_prelu_weight_grad", gradient, value),
    )


def rrelu_backward(chain: Chain, op: Op) -> Value:
    """Gradient of the randomised leaky ReLU: by the slopes drawn, or by their mean outside training."""
    gradient = chain.argument(op, "grad_output", "f")
    lower, upper = op.number("lower"), op.number("upper")
    if op.flag("training") and upper - lower > 1e-6:
        return chain.run("f_mul", gradient, chain.argument(op, "noise", "f"))
    mean = (lower + upper) / 2
    return chain.run("f_leaky_relu_grad", gradient, chain.argument(op, "self", "f"), scalars=(mean,))


def log_sigmoid(chain: Chain, op: Op) -> tuple[Value, Value]:
    """Logarithm of the sigmoid, and the ``exp(-|x|)`` that eager keeps for the gradient."""
    value = chain.argument(op, "self", "f")
    kept = chain.run("f_exp", chain.run("f_neg", chain.run("f_abs", value)))
    return chain.run("f_log_sigmoid", value), kept


def halves(held: HostTensor, dim: int) -> tuple[HostTensor, HostTensor]:
    """Return views of the two halves of a tensor along a dimension."""
    dim %= len(held.shape)
    size = held.shape[dim] // 2
    shape = (*held.shape[:dim], size, *held.shape[dim + 1 :])
    second = held.offset + size * held.strides[dim]
    return dataclasses.replace(held, shape=shape), dataclasses.replace(held, offset=second, shape=shape)


def glu(chain: Chain, op: Op) -> Value:
    """The first half times the sigmoid of the second."""
    held = chain.plan.value(op.inputs[0], contiguous=False)
    value, gate = halves(held, op.integer("dim"))
    return chain.run("f_glu", chain.load(value), chain.load(gate))


def emit_glu_backward(op: Op, plan: HostPlanner) -> None:
    """Emit the gradient of GLU: one chain writes both halves of the result."""
    dim = op.integer("dim")
    chain = Chain(plan, op.needed("grad_output").shape)
    held = plan.value(op.needed("self"), contiguous=False)
    value, gate = (chain.load(half) for half in halves(held, dim))
    incoming = chain.argument(op, "grad_output", "f")
    results = chain.run("f_glu", incoming, gate), chain.run("f_glu_gate_grad", incoming, value, gate)
    emit_results(chain, list(zip(results, halves(plan.output(op.outputs[0]), dim), strict=True)))


def logit(chain: Chain, op: Op) -> Value:
    """Logarithm of the odds, of an operand clamped to ``[eps, 1 - eps]`` where an eps is given."""
    value, eps = chain.argument(op, "self", "f"), op.number("eps", None)
    if eps is not None:
        value = chain.run("f_clamp", value, scalars=(eps, 1 - eps))
    return chain.run("f_logit", value)


def logit_backward(chain: Chain, op: Op) -> Value:
    """Gradient of the logit: beyond the clamp zero, beyond ``[0, 1]`` NaN."""
    eps = op.number("eps", None)
    bounds = (0.0, 1.0, math.nan) if eps is None else (eps, 1 - eps, 0.0)
    values = (chain.argument(op, name, "f") for name in ("grad_output", "self"))
    return chain.run("f_logit_grad", *values, scalars=bounds)


def hardtanh(chain: Chain, op: Op) -> Value:
    """Limit to ``[min_val, max_val]``."""
    kind, low, high = result_class(op), op.number("min_val"), op.number("max_val")
    value = chain.argument(op, "self", kind)
    if kind == "f":
        return chain.run("f_clamp", value, scalars=(low, high))
    return chain.run("l_min", chain.run("l_max", value, chain.scalar(low, "l")), chain.scalar(high, "l"))


def dropout_backward(chain: Chain, op: Op) -> Value:
    """``gradient * mask * scale``."""
    return chain.run(
        "f_dropout_grad", chain.argument(op, "grad_output", "f"), chain.argument(op, "mask", "b"),
        scalars=(op.number("scale"),),
    )


# --------------------------------------------------------------------------- records
RELU = vector_codelet("popnn::NonLinearity1D", 1, 1, supervisor=9, worker_half=25, worker_single=25)
ACTIVATION_GRADIENT = vector_codelet("popnn::NonLinearityGrad1D", 3, 3, supervisor=9, worker_half=25, worker_single=25)


def _register_activations() -> None:
    gelu_erf = vector_codelet("popnn::NonLinearity1D<gelu_erf>", 15, 30, supervisor=9, worker_half=25, worker_single=25)
    swish = vector_codelet("popnn::NonLinearity1D<swish>", 5, 11, supervisor=9, worker_half=25, worker_single=25)
    swish_gradient = vector_codelet(
        "popnn::NonLinearityGrad1D<swish>", 9, 15, supervisor=9, worker_half=25, worker_single=25
    )
    gelu_gradient = vector_codelet(
        "popnn::NonLinearityGrad1D<gelu_erf>", 15, 30, supervisor=9, worker_half=25, worker_single=25,
        source="estimate",  # as its forward
    )
    softplus_gradient = estimated_map("SoftplusGrad", 10, 22)
    elu = estimated_map("Elu", 10, 12)
    register_maps("relu", relu, RELU)
    register_maps("leaky_relu", parametrised("leaky_relu", "negative_slope"), estimated_map("LeakyRelu", 4, 4))
    register_maps("elu", parametrised("elu", "alpha", "scale", "input_scale"), elu)
    register_maps("gelu", gelu, gelu_erf)
    register_maps("silu", unary("silu"), swish)
    register_maps("mish", unary("mish"), SOFTPLUS)
    register_maps("softplus", parametrised("softplus", "beta", "threshold"), SOFTPLUS)
    register_maps("hardsigmoid", unary("hardsigmoid"), estimated_map("HardSigmoid", 5, 5))
    register_maps("hardswish", unary("hardswish"), estimated_map("HardSwish", 6, 6))
    register_maps(
        "clamp clamp.Tensor clamp_min clamp_min.Tensor clamp_max clamp_max.Tensor", clamp, vector_map("Clamp", 2, 2)
    )
    register_maps("threshold", threshold, SELECT)
    register_maps("celu", celu, elu)
    register_maps("hardshrink", parametrised("hardshrink", "lambd"), estimated_map("HardShrink", 12, 11))
    register_maps("softshrink", parametrised("softshrink", "lambd"), estimated_map("SoftShrink", 14, 13))
    register_maps("log_sigmoid_forward", log_sigmoid, SOFTPLUS)
    register_maps("logit", logit, estimated_map("Logit", 27, 24))
    gate = linear_vertices(estimated_map("Glu", 9, 15), tiling=gated)
    register(OpSpec("aten.glu.default", "glu", gate, instruction=glu))
    register_maps("_prelu_kernel", parametrised("prelu", operands=("self", "weight")), estimated_map("PRelu", 4, 4))
    gradient = ("grad_output", "self")
    register_maps(
        "threshold_backward", parametrised("threshold_grad", "threshold", operands=gradient), ACTIVATION_GRADIENT
    )
    register_maps("mish_backward", parametrised("mish_grad", operands=gradient), estimated_map("MishGrad", 26, 48))
    register_maps(
        "softshrink_backward", parametrised("shrink_grad", "lambd", operands=gradient), ACTIVATION_GRADIENT
    )
    register_maps(
        "hardshrink_backward", parametrised("shrink_grad", "lambd", operands=("grad_out", "self")), ACTIVATION_GRADIENT
    )
    register_maps("log_sigmoid_backward", parametrised("log_sigmoid_grad", operands=gradient), swish_gradient)
    register_maps("logit_backward", logit_backward, estimated_map("LogitGrad", 26, 15))
    register_maps("_prelu_kernel_backward", prelu_backward, estimated_map("PReluGrad", 8, 8))
    register_maps("rrelu_with_noise_backward", rrelu_backward, ACTIVATION_GRADIENT)
    glu_gradient = estimated_map("GluGrad", 18, 24)
    register(OpSpec("aten.glu_backward.default", "glu_backward", linear_vertices(glu_gradient, tiling=gated_gradient),
                    emit_glu_backward))
    register_maps("gelu_backward", gelu_backward, gelu_gradient)
    register_maps("silu_backward", parametrised("silu_grad", operands=gradient), swish_gradient)
    result = ("grad_output", "output")
    register_maps("sigmoid_backward", parametrised("sigmoid_grad", operands=result), ACTIVATION_GRADIENT)
    register_maps("tanh_backward", parametrised("tanh_grad", operands=result), ACTIVATION_GRADIENT)
    register_maps("hardtanh", hardtanh, vector_map("HardTanh", 2, 2))
    register_maps(
        "hardtanh_backward", parametrised("hardtanh_grad", "min_val", "max_val", operands=gradient), ACTIVATION_GRADIENT
    )
    register_maps("hardsigmoid_backward", parametrised("hardsigmoid_grad", operands=gradient), ACTIVATION_GRADIENT)
    register_maps("hardswish_backward", parametrised("hardswish_grad", operands=gradient), ACTIVATION_GRADIENT)
    register_maps(
        "softplus_backward", parametrised("softplus_grad", "beta", "threshold", operands=gradient), softplus_gradient
    )
    register_maps(
        "leaky_relu_backward", parametrised("leaky_relu_grad", "negative_slope", operands=gradient), ACTIVATION_GRADIENT
    )
    register_maps("elu_backward", elu_backward, estimated_map("EluGrad", 10, 12))
    register_maps("native_dropout_backward", dropout_backward, MULTIPLY_ADD)


_register_activations()
