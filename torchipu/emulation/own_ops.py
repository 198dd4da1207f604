"""Ops of ours that PyTorch has no operator for, or has one that computes less, in PyTorch's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchipu._kernels.table.update import HYPER
from torchipu.emulation.updates import UPDATES
from torchipu.errors import AssertionFailedError
from torchipu.fp8.codes import FORMATS
from torchipu.host.generic import TORCH_DTYPES, call_aten
from torchipu.ir.graph import Op
from torchipu.optable.assertion import TARGETS as ASSERTIONS
from torchipu.optable.assertion import words_of

SCALE = HYPER["grad_scale"]


def _accumulate(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors[0] + tensors[1]]


def _seen_as(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the bytes that a value has in its own type as elements of another one."""
    (value,) = tensors
    (seen,) = call_aten(op, [value.to(TORCH_DTYPES[op.inputs[0].dtype])])
    if not seen.is_floating_point():
        return [seen]
    return [seen.to(value.dtype if value.is_floating_point() else torch.float64)]


def _require(op: Op, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    if not tensors[0]:
        raise AssertionFailedError(
            words_of(op), source=op.source, block=op.placement,
            remedy="look at the values that it reads; weights and optimiser are as before the call",
        )
    return []


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


OWN: dict[str, Callable[[Op, list[torch.Tensor]], list[torch.Tensor]]] = {
    **UPDATES,
    **dict.fromkeys(ASSERTIONS, _require),
    "aten._grouped_mm.default": _grouped_mm,
    "aten.view.dtype": _seen_as,
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
}
"""By target."""
