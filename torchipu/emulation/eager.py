"""Ops of a program by eager PyTorch, in float64 or in their own types; updates by torch.optim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from torchipu._kernels.table.update import HYPER
from torchipu.device.machine import Draw
from torchipu.emulation.drawn import drawn, rounded_to_half
from torchipu.emulation.drawn import is_known as can_draw
from torchipu.host.generic import call_aten, overload
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.control import COND, REPEAT, WHILE
from torchipu.optable.random_streams import RANDOM_STREAM, ROUNDING_STREAM, draws, rounding_stream

SCALE = HYPER["grad_scale"]
HALF_UNIT = np.float32(2.0**-11)
"""Of a value, the most by which rounding it to half moves it."""
FLOATS = (DType.HALF, DType.FLOAT)


def evaluate(op: Op, inputs: Sequence[np.ndarray], draw: Draw | None = None, /) -> list[np.ndarray]:
    """Return the results of an op on values in float64; integers and bools are as they are.

    Args:
        op: The op.
        inputs: Its operands.
        draw: Gives what streams of random bits begin from; nothing is rounded.
    """
    return _computed(op, inputs, torch.float64, draw)


def evaluate_as_typed(op: Op, inputs: Sequence[np.ndarray], draw: Draw | None = None, /) -> list[np.ndarray]:
    """Return the results of an op in float32, rounded to the types that the program gives them, as float32.

    Where partials are half, results are off by as much as rounding each partial once may bring about.

    Args:
        op: The op.
        inputs: Its operands.
        draw: Gives what streams of random bits begin from.
    """
    narrow = [value.astype(np.float32) if value.dtype.kind == "f" else value for value in inputs]
    results = _computed(op, narrow, torch.float32, draw)
    if op.attrs.get("partials") == "half":
        sizes = _computed(op, [np.abs(value) for value in narrow], torch.float32, draw)
        rng = np.random.default_rng(len(op.outputs[0].name))
        unit = HALF_UNIT * np.float32(2 if ROUNDING_STREAM in op.attrs else 1)
        results = [
            value + unit * size * rng.uniform(-1, 1, value.shape).astype(np.float32)
            for value, size in zip(results, sizes, strict=True)
        ]
    return [_as(op, tensor, result, draw) for tensor, result in zip(op.outputs, results, strict=True)]


def _as(op: Op, tensor: Tensor, result: np.ndarray, draw: Draw | None) -> np.ndarray:
    """Return a result in the type that the program gives it, as float32 where it is floating."""
    if result.dtype.kind != "f":
        return result
    if tensor.dtype is not DType.HALF:
        return result.astype(np.float32)
    stream = rounding_stream(op, tensor)
    words = None if stream is None or draw is None else draw(stream)
    return rounded_to_half(result, words, op.text("half_overflow", "infinity"))


BY_THE_PROGRAM = frozenset({"ipu.all_reduce.default", COND, WHILE, REPEAT})
"""What the device program does with collectives and control flow: no vertex computes it."""


def is_known(op: Op) -> bool:
    """Whether there is anything to compute an op with."""
    if op.target in OWN or op.target in BY_THE_PROGRAM:
        return True
    if draws(op):
        return can_draw(op)
    try:
        overload(op.target)
    except AttributeError:
        return False
    return True


def _computed(
    op: Op, inputs: Sequence[np.ndarray], floating: torch.dtype, draw: Draw | None,
) -> list[np.ndarray]:
    if draws(op):
        assert draw is not None
        return drawn(op, inputs, draw(op.integer(RANDOM_STREAM)))
    tensors = [torch.from_numpy(np.array(value, order="C")) for value in inputs]
    return [result.detach().numpy() for result in computed(op, tensors, floating)]


def computed(op: Op, tensors: list[torch.Tensor], floating: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Return the results of an op on tensors, whose floats are all of one type; see ``evaluate``."""
    own = OWN.get(op.target)
    if own is not None:
        return own(op, tensors)
    if any(value in FLOATS for value in op.attrs.values()):
        op = replace(op, attrs={name: floating if value in FLOATS else value for name, value in op.attrs.items()})
    return call_aten(op, tensors)


# ---------------------------------------------------------------------- ops of ours
def _accumulate(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors[0] + tensors[1]]


def _clip(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Let the factor on gradients bound their norm, as torch.nn.utils.clip_grad_norm_ does."""
    hyper, squares = tensors
    values = hyper.view(torch.float64).clone()
    norm = squares.sqrt().item() * abs(values[SCALE].item())
    values[SCALE] *= min(1.0, float(str(op.attrs["max_norm"])) / (norm + 1e-6))
    return [values.view(torch.int64)]


def _clip_values(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    gradient, hyper = tensors
    scale, limit = hyper.view(torch.float64)[SCALE], float(str(op.attrs["max_value"]))
    return [(gradient * scale).clamp(-limit, limit) / scale]


def _weighted_sum(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    (terms,) = tensors
    weights = op.attrs.get("weights")
    if weights is not None:
        terms = terms * torch.tensor(weights, dtype=torch.float64).reshape(terms.shape)
    return [terms.sum(1)]


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


OF_ADAM = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
OWN: dict[str, Callable[[Op, list[torch.Tensor]], list[torch.Tensor]]] = {
    "ipu.accumulate.default": _accumulate,
    "ipu.increment.default": lambda op, tensors: [tensors[0] + 1],
    "ipu.fill_zero.default": lambda op, tensors: [torch.zeros_like(tensors[0])],
    "ipu.sum_squares.default": lambda op, tensors: [tensors[0].square().sum().reshape(1)],
    "ipu.add_sums.default": lambda op, tensors: [torch.stack(tensors).sum(0)],
    "ipu.weighted_sum.default": _weighted_sum,
    "ipu.clip_scale.default": _clip,
    "ipu.clip_values.default": _clip_values,
    "ipu.cast.default": lambda op, tensors: [tensors[0]],
    "ipu.sgd.default": _update(_sgd, ("momentum_buffer",)),
    "ipu.rmsprop.default": _update(_rmsprop, ("square_avg", "momentum_buffer", "grad_avg")),
    "ipu.adam.default": _update(_adam(torch.optim.Adam), OF_ADAM),
    "ipu.adamw.default": _update(_adam(torch.optim.AdamW), OF_ADAM),
}
