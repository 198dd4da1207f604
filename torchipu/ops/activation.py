"""Activations and their gradients: how each enters a fused chain, and what it costs."""

from __future__ import annotations

from torchipu.ir.graph import Op
from torchipu.ops.chain import Chain, Value
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
from torchipu.ops.lowering import vector_codelet


def gelu(chain: Chain, op: Op) -> Value:
    """GELU, by the error function or by tanh."""
    name = "f_gelu_tanh" if op.attrs.get("approximate") == "tanh" else "f_gelu"
    return chain.run(name, chain.argument(op, "self", "f"))


def gelu_backward(chain: Chain, op: Op) -> Value:
    """Gradient of GELU."""
    name = "f_gelu_tanh_grad" if op.attrs.get("approximate") == "tanh" else "f_gelu_grad"
    return chain.run(name, chain.argument(op, "grad_output", "f"), chain.argument(op, "self", "f"))


def elu_backward(chain: Chain, op: Op) -> Value:
    """Gradient of ELU from its operand or from its result."""
    name = "f_elu_result_grad" if op.attrs.get("is_result") else "f_elu_grad"
    scalars = [op.attrs[attr] for attr in ("alpha", "scale", "input_scale")]
    return chain.run(
        name, chain.argument(op, "grad_output", "f"), chain.argument(op, "self_or_result", "f"), scalars=scalars,  # type: ignore[arg-type]
    )


def hardtanh(chain: Chain, op: Op) -> Value:
    """Limit to ``[min_val, max_val]``."""
    kind = result_class(op)
    value = chain.argument(op, "self", kind)
    if kind == "f":
        return chain.run("f_clamp", value, scalars=(op.attrs["min_val"], op.attrs["max_val"]))  # type: ignore[arg-type]
    value = chain.run("l_max", value, chain.scalar(op.attrs["min_val"], "l"))  # type: ignore[arg-type]
    return chain.run("l_min", value, chain.scalar(op.attrs["max_val"], "l"))  # type: ignore[arg-type]


def dropout_backward(chain: Chain, op: Op) -> Value:
    """``gradient * mask * scale``."""
    return chain.run(
        "f_dropout_grad", chain.argument(op, "grad_output", "f"), chain.argument(op, "mask", "b"),
        scalars=(op.attrs["scale"],),  # type: ignore[arg-type]
    )


# --------------------------------------------------------------------------- records
ACTIVATION = vector_codelet("popnn::NonLinearity1D", 3, 3, supervisor=9, worker_half=25, worker_single=25)
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
    softplus = vector_codelet("popops::Softplus", 10, 22, source="estimate")
    register_maps("relu", unary("relu", None), ACTIVATION)
    register_maps("leaky_relu", parametrised("leaky_relu", "negative_slope"), estimated_map("LeakyRelu", 4, 4))
    register_maps("elu", parametrised("elu", "alpha", "scale", "input_scale"), estimated_map("Elu", 10, 12))
    register_maps("gelu", gelu, gelu_erf)
    register_maps("silu", unary("silu"), swish)
    register_maps("mish", unary("mish"), softplus)
    register_maps("softplus", parametrised("softplus", "beta", "threshold"), softplus)
    register_maps("hardsigmoid", unary("hardsigmoid"), estimated_map("HardSigmoid", 5, 5))
    register_maps("hardswish", unary("hardswish"), estimated_map("HardSwish", 6, 6))
    register_maps(
        "clamp clamp.Tensor clamp_min clamp_min.Tensor clamp_max clamp_max.Tensor", clamp, vector_map("Clamp", 2, 2)
    )
    register_maps("threshold", parametrised("threshold", "threshold", "value"), SELECT)
    gradient = ("grad_output", "self")
    register_maps(
        "threshold_backward", parametrised("threshold_grad", "threshold", operands=gradient), ACTIVATION_GRADIENT
    )
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
    register_maps("softplus_backward", parametrised("softplus_grad", "beta", "threshold", operands=gradient), softplus)
    register_maps(
        "leaky_relu_backward", parametrised("leaky_relu_grad", "negative_slope", operands=gradient), ACTIVATION_GRADIENT
    )
    register_maps("elu_backward", elu_backward, estimated_map("EluGrad", 10, 12))
    register_maps("native_dropout_backward", dropout_backward, MULTIPLY_ADD)


_register_activations()
