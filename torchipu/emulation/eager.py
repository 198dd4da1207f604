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
from torchipu.fp8.codes import FORMATS
from torchipu.host.generic import call_aten, overload
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.control import COND, REPEAT, WHILE
from torchipu.optable.random_streams import RANDOM_STREAM, ROUNDING_STREAM, draws, rounding_stream
from torchipu.optim import LAMB, LARS

SCALE = HYPER["grad_scale"]
HALF_UNIT = np.float32(2.0**-11)
"""Of a value, the most by which rounding it to half moves it."""
FLOATS = (DType.HALF, DType.FLOAT)
OF_BYTES = frozenset(f"torchipu.fp8_{name}.default" for name in ("matmul", "convolution", "convolution_backward"))
"""Products of floats of 8 bits, whose partials are half."""


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
    if op.attrs.get("partials") == "half" or op.target in OF_BYTES:
        sizes = _computed(op, [_size(value) for value in narrow], torch.float32, draw)
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


def _size(value: np.ndarray) -> np.ndarray:
    """Return magnitudes; the uppermost bit of a float of 8 bits is its sign."""
    return value & np.uint8(0x7F) if value.dtype == np.uint8 else np.abs(value)


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


def _unscale(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    hyper, scale = tensors
    values = hyper.view(torch.float64).clone()
    values[SCALE] /= scale.double()
    return [values.view(torch.int64)]


def _count_beyond(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    counter, gradient = tensors
    large = (~(gradient.abs() <= float(str(op.attrs["edge"])))).sum()
    return [counter + torch.tensor([int(large), gradient.numel()])]


def _adapt(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Change the loss scale after so many updates: down where too many gradients were large, else up."""
    scale, history, counter = tensors
    share, factor, least, most = (float(str(op.attrs[name])) for name in ("share", "factor", "least", "most"))
    beyond, every, updates = (history + torch.cat((counter, torch.ones(1, dtype=torch.int64)))).tolist()
    if updates < int(str(op.attrs["period"])):
        return [scale, torch.tensor([beyond, every, updates])]
    changed = scale / factor if beyond > share * every else scale * factor
    return [changed if least <= changed.item() <= most else scale, torch.zeros_like(history)]


def _accumulate_mean(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    mean, gradient, count = tensors
    return [mean * (count / (count + 1)) + gradient / (count + 1), count + 1]


def _bag(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return bags, and all that backward may read, of which eager leaves out what its own does not."""
    results = call_aten(op, tensors)
    indices, offsets = (tensors[op.operands.index(name)] for name in ("indices", "offsets"))
    count = offsets.numel() - bool(op.attrs.get("include_last_offset"))
    bag_of = torch.searchsorted(offsets[:count].contiguous(), torch.arange(indices.numel()), right=True) - 1
    padding = op.attrs.get("padding_idx")
    is_there = indices != (-1 if padding is None else int(str(padding)))
    sizes = torch.zeros(count, dtype=torch.int64).index_add(0, bag_of.clamp(min=0), (is_there & (bag_of >= 0)).long())
    known: dict[int, torch.Tensor] = {0: results[0], 1: bag_of, 2: sizes}
    flags = op.attrs.get("present", (True,) * 4)
    assert isinstance(flags, (tuple, list))
    slots = [slot for slot, is_present in enumerate(flags) if is_present]
    if int(str(op.attrs.get("mode", 0))) == 2 and 3 in slots:
        known[3] = results[slots.index(3)]
    found = []
    for slot, tensor in zip(slots, op.outputs, strict=True):
        value = known.get(slot)
        is_whole = value is not None and value.numel() == tensor.num_elements
        found.append(value.reshape(tensor.shape) if value is not None and is_whole
                     else torch.zeros(tensor.shape, dtype=torch.int64))
    return found


def _grouped_mm(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Multiply groups of rows, or of summands, which eager has for bfloat16 alone."""
    left, right = tensors[:2]
    if "offs" not in op.operands:
        return [left @ right]
    ends = [int(end) for end in tensors[op.operands.index("offs")]]
    groups = list(zip([0, *ends[:-1]], ends, strict=True))
    if right.dim() == 2:
        return [torch.stack([left[:, begin:end] @ right[begin:end] for begin, end in groups])]
    rows = [left[begin:end] @ right[group] for group, (begin, end) in enumerate(groups)]
    return [torch.cat([*rows, left.new_zeros(len(left) - ends[-1], right.shape[-1])])]


def _decoded(codes: torch.Tensor, name: object) -> torch.Tensor:
    return codes.view(FORMATS[str(name)]).to(torch.float32).double()


def _fp8_matmul(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    left, right = (_decoded(codes, op.attrs[name]) for codes, name in zip(
        tensors, ("left_format", "right_format"), strict=True))
    return [left @ right * 2.0 ** int(str(op.attrs["scale"]))]


def _fp8_window(op: Op) -> list[Any]:
    stride, padding, dilation = (list(op.integers(name)) for name in ("stride", "padding", "dilation"))
    return [stride, padding, dilation, False, [0] * len(stride), int(str(op.attrs["groups"]))]


def _fp8_convolution(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    x, weight = (_decoded(codes, op.attrs[name]) for codes, name in zip(
        tensors, ("input_format", "weight_format"), strict=True))
    made = torch.ops.aten.convolution.default(x, weight, None, *_fp8_window(op))
    return [made * 2.0 ** int(str(op.attrs["scale"]))]


def _fp8_convolution_backward(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    values = [_decoded(codes, name) for codes, name in zip(tensors, op.text("formats").split(","), strict=True)]
    dx, dw, _ = torch.ops.aten.convolution_backward.default(*values, None, *_fp8_window(op), [True, True, False])
    of_gradient, of_input, of_weight = op.integers("scales")
    return [dx * 2.0 ** (of_gradient + of_weight), dw * 2.0 ** (of_gradient + of_input)]


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


OF_ADAM = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
OWN: dict[str, Callable[[Op, list[torch.Tensor]], list[torch.Tensor]]] = {
    "aten._grouped_mm.default": _grouped_mm,
    "torchipu.fp8_matmul.default": _fp8_matmul,
    "torchipu.fp8_convolution.default": _fp8_convolution,
    "torchipu.fp8_convolution_backward.default": _fp8_convolution_backward,
    "aten._embedding_bag.default": _bag,
    "aten._embedding_bag_forward_only.default": _bag,
    "ipu.accumulate.default": _accumulate,
    "ipu.increment.default": lambda op, tensors: [tensors[0] + 1],
    "ipu.fill_zero.default": lambda op, tensors: [torch.zeros_like(tensors[0])],
    "ipu.sum_squares.default": lambda op, tensors: [tensors[0].square().sum().reshape(1)],
    "ipu.add_sums.default": lambda op, tensors: [torch.stack(tensors).sum(0)],
    "ipu.accumulate_mean.default": _accumulate_mean,
    "ipu.count_beyond.default": _count_beyond,
    "ipu.join_counts.default": lambda op, tensors: [torch.stack(tensors).sum(0)],
    "ipu.adapt_loss_scale.default": _adapt,
    "ipu.unscale.default": _unscale,
    "ipu.weighted_sum.default": _weighted_sum,
    "ipu.clip_scale.default": _clip,
    "ipu.clip_values.default": _clip_values,
    "ipu.cast.default": lambda op, tensors: [tensors[0]],
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
