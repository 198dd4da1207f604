"""Updates of weights by torch.optim, and by our LAMB and LARS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchipu._kernels.table.update import HYPER
from torchipu.ir.graph import Op
from torchipu.optim import LAMB, LARS

OF_ADAM = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


def _update(kind: Callable[[torch.Tensor, dict[str, float]], torch.optim.Optimizer], states: tuple[str, ...]) -> Any:
    def update(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        def given(name: str) -> Any:
            return tensors[op.operands.index(name)].clone() if name in op.operands else None

        weight, gradient, hyper, step = (given(name) for name in ("param", "grad", "hyper", "step"))
        assert None not in (weight, gradient, hyper, step)
        values = {name: float(hyper.view(torch.float64)[place]) for name, place in HYPER.items()}
        weight.grad = gradient * values["grad_scale"]
        optimizer = kind(weight, values)
        state: dict[str, Any] = {name: value for name in states if (value := given(name)) is not None}
        if "momentum_buffer" in state and float(step) == 1 and "square_avg" not in state:
            del state["momentum_buffer"]  # torch.optim.SGD makes it of the first gradient
        optimizer.state[weight] = {**state, "step": step - 1}
        optimizer.step()
        after = optimizer.state[weight]
        return [weight, *(after[name] for name in op.operands if name in states)]

    return update


def _layerwise(kind: Callable[[torch.Tensor, dict[str, float]], torch.optim.Optimizer], *names: str) -> Any:
    def update(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        given = {name: tensor.clone() for name, tensor in zip(op.operands, tensors, strict=True)}
        values = {name: float(given["hyper"].view(torch.float64)[place]) for name, place in HYPER.items()}
        weight = given["param"]
        weight.grad = given["grad"] * values["grad_scale"]
        optimizer = kind(weight, values)
        step = given.get("step", torch.tensor(1.0))
        optimizer.state[weight] = {**{name: given[name] for name in names}, "step": step - 1}
        optimizer.step()
        after = {**optimizer.state[weight], "param": weight}
        return [after[name] for name in op.operands if name in after and name != "step"]

    return update


def _of_hyper(hyper: torch.Tensor) -> dict[str, float]:
    return {name: float(hyper.view(torch.float64)[place]) for name, place in HYPER.items()}


def _lamb_direction(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the averages, and Adam's direction with the decay of the weights."""
    param, grad, mean, square, hyper, step = (tensors[op.operands.index(name)] for name in (
        "param", "grad", "exp_avg", "exp_avg_sq", "hyper", "step"))
    h = _of_hyper(hyper)
    grad, powers = grad * h["grad_scale"], h["bias_correction"] * step
    mean = h["beta1"] * mean + (1 - h["beta1"]) * grad
    square = h["beta2"] * square + (1 - h["beta2"]) * grad * grad
    first, second = (1 - h[name] ** powers if powers > 0 else 1.0 for name in ("beta1", "beta2"))
    return [mean, square, mean / first / ((square / second).sqrt() + h["eps"]) + h["weight_decay"] * param]


def _lamb_apply(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Subtract a direction from weights, scaled to their norm."""
    param, direction, weight, length, hyper = tensors
    h = _of_hyper(hyper)
    ratio = weight.sqrt().clamp(max=h["max_weight_norm"]) / length.sqrt() if weight > 0 and length > 0 else 1.0
    return [param - h["lr"] * ratio * direction]


def _lars_apply(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Subtract momentum from weights, whose new part is scaled to the ratio of their norm to the gradient's."""
    param, momentum, grad, weight, slope, hyper = tensors
    h = _of_hyper(hyper)
    weight, slope = weight.sqrt(), slope.sqrt() * abs(h["grad_scale"])
    below = slope + h["weight_decay"] * weight + h["eps"]
    ratio = h["trust_coefficient"] * weight / below if weight > 0 and slope > 0 else 1.0
    change = grad * h["grad_scale"] + h["weight_decay"] * param
    momentum = h["momentum"] * momentum + h["lr"] * ratio * change
    return [param - momentum, momentum]


def _lamb(weight: torch.Tensor, h: dict[str, float]) -> torch.optim.Optimizer:
    return LAMB(
        [weight], h["lr"], (h["beta1"], h["beta2"]), h["eps"], h["weight_decay"], bool(h["bias_correction"]),
        h["max_weight_norm"],
    )


def _lars(weight: torch.Tensor, h: dict[str, float]) -> torch.optim.Optimizer:
    return LARS([weight], h["lr"], h["momentum"], h["weight_decay"], h["trust_coefficient"], h["eps"])


def _sgd(weight: torch.Tensor, h: dict[str, float]) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        [weight], h["lr"], momentum=h["momentum"], dampening=h["dampening"], weight_decay=h["weight_decay"],
        nesterov=bool(h["nesterov"]), maximize=bool(h["maximize"]), foreach=False,
    )


def _adam(kind: type[torch.optim.Adam]) -> Callable[[torch.Tensor, dict[str, float]], torch.optim.Optimizer]:
    return lambda weight, h: kind(
        [weight], h["lr"], (h["beta1"], h["beta2"]), h["eps"], h["weight_decay"], amsgrad=bool(h["amsgrad"]),
        maximize=bool(h["maximize"]), foreach=False,
    )


def _rmsprop(weight: torch.Tensor, h: dict[str, float]) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(
        [weight], h["lr"], h["alpha"], h["eps"], h["weight_decay"], h["momentum"], bool(h["centered"]),
        maximize=bool(h["maximize"]), foreach=False,
    )


UPDATES: dict[str, Callable[[Op, list[torch.Tensor]], list[torch.Tensor]]] = {
    "ipu.sgd.default": _update(_sgd, ("momentum_buffer",)),
    "ipu.rmsprop.default": _update(_rmsprop, ("square_avg", "momentum_buffer", "grad_avg")),
    "ipu.adam.default": _update(_adam(torch.optim.Adam), OF_ADAM),
    "ipu.adamw.default": _update(_adam(torch.optim.AdamW), OF_ADAM),
    "ipu.lamb.default": _layerwise(_lamb, "exp_avg", "exp_avg_sq"),
    "ipu.lamb_direction.default": _lamb_direction,
    "ipu.lamb_apply.default": _lamb_apply,
    "ipu.lars.default": _layerwise(_lars, "momentum_buffer"),
    "ipu.lars_apply.default": _lars_apply,
}
"""By target."""
