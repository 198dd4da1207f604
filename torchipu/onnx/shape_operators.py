"""Operators that take axes and sizes as tensors, with numbers in their place: a program is compiled for numbers.

ONNX gives axes, sizes and counts as inputs. Where they are constants, which they are once the sizes of a model's inputs
are known, the operator becomes a function of PyTorch's with plain numbers; where not, the converter's own is taken.
Semantics: the operator specifications of ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch.nn import functional as F

SCALARS: Mapping[str, tuple[int, ...]] = {"DFT": (1, 2), "OneHot": (1,), "STFT": (1, 3), "Trilu": (1,)}
"""By operator that the converter computes, the inputs of which it asks a whole number."""
LISTS: Mapping[str, tuple[int, ...]] = {"AffineGrid": (1,), "CenterCropPad": (1,), "Col2Im": (1, 2), "MaxUnpool": (2,)}
"""The inputs of which it asks several."""
Numbers = Callable[[int], Any]
"""Gives what the input at a position is where that is a constant: a list, a number, or None where it is left out."""
Operator = Callable[..., Any]


class NotConstantError(Exception):
    """An input that decides sizes is computed by the model itself, or the operator is not one of these."""


def with_numbers(kind: str, attributes: Mapping[str, Any], numbers: Numbers) -> Operator:
    """Return an operator as a function of its first `tensors_of` inputs alone.

    Args:
        kind: Its type.
        attributes: By name.
        numbers: Gives its other inputs.

    Raises:
        NotConstantError: It is not one of these, or its numbers are not constant.
    """
    if kind in _REDUCTIONS:
        return _reduction(kind, attributes, numbers)
    if kind not in _OPERATORS:
        raise NotConstantError(kind)
    return _OPERATORS[kind](attributes, numbers)


def tensors_of(kind: str) -> int:
    """Return how many inputs of an operator stay tensors."""
    return 2 if kind in ("Gather", "ReverseSequence") else 1


def number_in_place(kind: str, index: int, numbers: Numbers) -> Any:
    """Return what the converter's operator takes in the place of an input: numbers, where these are constant.

    Args:
        kind: Its type.
        index: Position of the input.
        numbers: Gives the inputs.

    Raises:
        NotConstantError: The input stays a tensor.
    """
    if index in SCALARS.get(kind, ()):
        return _number(numbers(index))
    if index in LISTS.get(kind, ()):
        return numbers(index)
    raise NotConstantError


def _given(value: Any) -> Any:
    """Return a value that the operator cannot do without: older operators have it as an attribute instead."""
    if value is None:
        raise NotConstantError
    return value


def _reshape(attributes: Mapping[str, Any], numbers: Numbers) -> Operator:
    shape, takes_zeros = _given(numbers(1)), attributes.get("allowzero", 0)

    def call(x: torch.Tensor) -> torch.Tensor:
        return x.reshape([x.shape[at] if size == 0 and not takes_zeros else size for at, size in enumerate(shape)])

    return call


def _expand(_: Mapping[str, Any], numbers: Numbers) -> Operator:
    shape = _given(numbers(1))
    return lambda x: x.expand(torch.broadcast_shapes(x.shape, shape))


def _squeeze(_: Mapping[str, Any], numbers: Numbers) -> Operator:
    axes = tuple(_given(numbers(1)))
    return lambda x: x.squeeze(axes)


def _unsqueeze(_: Mapping[str, Any], numbers: Numbers) -> Operator:
    axes = _given(numbers(1))

    def call(x: torch.Tensor) -> torch.Tensor:
        rank = x.dim() + len(axes)
        return reduce(torch.unsqueeze, sorted(axis % rank for axis in axes), x)

    return call


def _slice(_: Mapping[str, Any], numbers: Numbers) -> Operator:
    starts, ends, axes, steps = _given(numbers(1)), _given(numbers(2)), numbers(3), numbers(4)
    axes = range(len(starts)) if axes is None else axes
    parts = list(zip(axes, starts, ends, steps or [1] * len(starts), strict=True))

    def call(x: torch.Tensor) -> torch.Tensor:
        for axis, start, end, step in parts:
            taken = range(x.shape[axis])[start:end:step]
            ordered = taken if step > 0 else taken[::-1]
            index = [slice(None)] * x.dim()
            index[axis] = slice(ordered.start, max(ordered.stop, ordered.start), ordered.step)
            x = x[tuple(index)] if step > 0 else x[tuple(index)].flip(axis)
        return x

    return call


def _tile(_: Mapping[str, Any], numbers: Numbers) -> Operator:
    repeats = _given(numbers(1))
    return lambda x: x.repeat(repeats)


def _gather(attributes: Mapping[str, Any], numbers: Numbers) -> Operator:
    axis = attributes.get("axis", 0)
    try:
        one = numbers(1)
    except NotConstantError:
        one = None

    def call(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if isinstance(one, int):
            return x.select(axis, one)
        return x[(*(slice(None),) * (axis % x.dim()), index)]

    return call


_MODES_OF_PADDING = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(attributes: Mapping[str, Any], numbers: Numbers) -> Operator:
    pads, value, axes = _given(numbers(1)), numbers(2), numbers(3)
    mode = _MODES_OF_PADDING[attributes.get("mode", "constant")]
    half = len(pads) // 2

    def call(x: torch.Tensor) -> torch.Tensor:
        by_axis = dict.fromkeys(range(x.dim()), (0, 0))
        for at, axis in enumerate(range(x.dim()) if axes is None else axes):
            by_axis[axis % x.dim()] = (pads[at], pads[half + at])
        flat = [size for axis in reversed(range(x.dim())) for size in by_axis[axis]]
        while len(flat) > 2 and flat[-2:] == [0, 0]:
            del flat[-2:]
        if mode == "constant":
            return F.pad(x, flat, value=0.0 if value is None else _number(value))
        return F.pad(x, flat, mode=mode)

    return call


def _split(attributes: Mapping[str, Any], numbers: Numbers) -> Operator:
    sizes, axis = _given(numbers(1)), attributes.get("axis", 0)
    return lambda x: torch.split(x, sizes, axis)


def _topk(attributes: Mapping[str, Any], numbers: Numbers) -> Operator:
    count, axis, largest = _number(_given(numbers(1))), attributes.get("axis", -1), attributes.get("largest", 1)
    return lambda x: tuple(torch.topk(x, count, axis, bool(largest), bool(attributes.get("sorted", 1))))


def _cumsum(attributes: Mapping[str, Any], numbers: Numbers) -> Operator:
    axis, backwards = _number(_given(numbers(1))), bool(attributes.get("reverse", 0))
    exclusive = bool(attributes.get("exclusive", 0))

    def call(x: torch.Tensor) -> torch.Tensor:
        x = x.flip(axis) if backwards else x
        sums = torch.cumsum(x, axis, dtype=x.dtype)
        sums = sums - x if exclusive else sums
        return sums.flip(axis) if backwards else sums

    return call


def _resize(attributes: Mapping[str, Any], numbers: Numbers) -> Operator:
    """Where PyTorch's interpolation has the same places of samples: as its own exporter writes it."""
    mode, places = attributes.get("mode", "nearest"), attributes.get("coordinate_transformation_mode", "half_pixel")
    scales, sizes = numbers(2), numbers(3)
    if mode == "nearest":
        same, corners = (places, attributes.get("nearest_mode", "round_prefer_floor")) == ("asymmetric", "floor"), None
    else:
        same = places in ("half_pixel", "pytorch_half_pixel", "align_corners")
        same = same and (mode == "linear" or attributes.get("cubic_coeff_a", -0.75) == -0.75)
        corners = places == "align_corners"
    if not same or attributes.get("axes") or attributes.get("antialias") or attributes.get("exclude_outside"):
        raise NotConstantError

    def call(x: torch.Tensor) -> torch.Tensor:
        wanted = sizes or [int(size * scale) for size, scale in zip(x.shape, scales, strict=True)]
        names = {"nearest": "nearest", "cubic": "bicubic", "linear": ("linear", "bilinear", "trilinear")[x.dim() - 3]}
        return F.interpolate(x, wanted[2:], mode=names[mode], align_corners=corners)

    return call


def _reverse_sequence(attributes: Mapping[str, Any], _: Numbers) -> Operator:
    batch, time = attributes.get("batch_axis", 1), attributes.get("time_axis", 0)

    def call(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[time], device=x.device)
        ends = lengths.unsqueeze(1)
        places = torch.where(steps < ends, ends - 1 - steps, steps)  # [N, T]
        rows = x.movedim((batch, time), (0, 1))
        spread = places.reshape(*places.shape, *[1] * (x.dim() - 2)).expand_as(rows)
        return torch.gather(rows, 1, spread).movedim((0, 1), (batch, time))

    return call


_OPERATORS: dict[str, Callable[[Mapping[str, Any], Numbers], Operator]] = {
    "CumSum": _cumsum,
    "Expand": _expand,
    "Gather": _gather,
    "Pad": _pad,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _topk,
    "Unsqueeze": _unsqueeze,
}


def _product(x: torch.Tensor, axes: Sequence[int], keepdim: bool) -> torch.Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keepdim)
    return x


_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "ReduceL1": lambda x, axes, keepdim: x.abs().sum(axes, keepdim=keepdim),
    "ReduceL2": lambda x, axes, keepdim: torch.linalg.vector_norm(x, 2, axes, keepdim),
    "ReduceLogSum": lambda x, axes, keepdim: x.sum(axes, keepdim=keepdim).log(),
    "ReduceLogSumExp": lambda x, axes, keepdim: torch.logsumexp(x, axes, keepdim),
    "ReduceMax": torch.amax,
    "ReduceMean": torch.mean,
    "ReduceMin": torch.amin,
    "ReduceProd": _product,
    "ReduceSum": torch.sum,
    "ReduceSumSquare": lambda x, axes, keepdim: (x * x).sum(axes, keepdim=keepdim),
}


def _reduction(kind: str, attributes: Mapping[str, Any], numbers: Numbers) -> Operator:
    axes, keeps = _given(numbers(1)), bool(attributes.get("keepdims", 1))
    if axes:
        return partial(_reduced, _REDUCTIONS[kind], tuple(axes), keeps)
    raise NotConstantError  # no axes are all of them, or none, as an attribute says


def _reduced(
    reduction: Callable[..., torch.Tensor], axes: tuple[int, ...], keeps: bool, x: torch.Tensor,
) -> torch.Tensor:
    return reduction(x, axes, keepdim=keeps)


def _number(value: Any) -> Any:
    """Return the number of a scalar, or of a vector of one."""
    return value[0] if isinstance(value, list) else value
