"""Elementwise operators that are taken apart at capture; see `torchipu.capture.decompositions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _rrelu(
    self: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw the slope of each negative element; outside training take the mean slope."""
    if not training:
        return aten.leaky_relu(self, (lower + upper) / 2), noise
    slopes = torch.where(self <= 0, aten.rand_like(self) * (upper - lower) + lower, 1.0)
    return self * slopes, slopes


def _fake_quantize(
    self: Tensor, scale: Tensor | float, zero_point: Tensor | int, quant_min: int, quant_max: int,
) -> tuple[Tensor, Tensor]:
    """Round to steps of ``scale``; the mask tells what the range did not cut off."""
    whole = torch.round(self / scale) + zero_point
    kept = (whole >= quant_min) & (whole <= quant_max)
    return ((whole.clamp(quant_min, quant_max) - zero_point) * scale).to(self.dtype), kept


def _fake_quantize_channels(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int,
) -> tuple[Tensor, Tensor]:
    shape = [-1 if dim == axis else 1 for dim in range(self.dim())]
    return _fake_quantize(self, scale.view(shape), zero_point.view(shape), quant_min, quant_max)


def _fake_quantize_tensors(
    self: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int,
) -> tuple[Tensor, Tensor]:
    values, kept = _fake_quantize(self, scale, zero_point, quant_min, quant_max)
    enabled = fake_quant_enabled != 0
    return torch.where(enabled, values, self), kept | ~enabled


def _zeros(
    size: Sequence[int], *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
    pin_memory: bool | None = None,
) -> Tensor:
    return aten.zeros(size, dtype=dtype, device=device)


# ---------------------------------------------------------------------- lists of tensors
def _with_value(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``addcmul`` or ``addcdiv`` with the factor as the fourth argument, a number or a tensor."""

    def call(self: Tensor, first: Tensor, second: Tensor, value: Tensor | float = 1) -> Tensor:
        if not isinstance(value, Tensor):
            return function(self, first, second, value=value)
        return self + value * (first * second if function is torch.addcmul else first / second)

    return call


def _norm(self: Tensor, order: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return aten.linalg_vector_norm(self, order, dtype=dtype)


def _limit(tensors: Callable[..., Tensor], number: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a limit by a tensor or by a number, for which torch has functions of different names."""
    return lambda self, other: (tensors if isinstance(other, Tensor) else number)(self, other)


_MEMBERS: dict[str, Callable[..., Tensor]] = {
    "addcmul": _with_value(torch.addcmul), "addcdiv": _with_value(torch.addcdiv), "norm": _norm,
    "maximum": _limit(torch.maximum, torch.clamp_min), "minimum": _limit(torch.minimum, torch.clamp_max),
    "zero": torch.zeros_like, "copy": aten.copy, "max": torch.max,
}
"""What a list op does with each member, where no function of torch has its name and arguments."""


def _one_by_one(overload: torch._ops.OpOverload, member: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """Return the decomposition of a list op: its function for each member, with that member's numbers."""
    names = [argument.name for argument in overload._schema.arguments if not argument.kwarg_only]

    def apart(*args: Any, **kwargs: Any) -> list[Tensor]:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        length = next(len(value) for value in given.values() if isinstance(value, (list, tuple)))
        spread = [
            list(value) if isinstance(value, (list, tuple)) or name == "scalars" else [value] * length
            for name, value in given.items() if name in names
        ]
        shared = {name: value for name, value in given.items() if name not in names}
        return [member(*row, **shared) for row in zip(*spread, strict=True)]

    return apart


_UNTRACEABLE = (aten._foreach_addcdiv.Tensor, aten._foreach_addcmul.Tensor)
"""torch reads the values of their numbers before any decomposition is asked for."""


def list_ops() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Return a decomposition for every functional ``_foreach_`` overload whose members are ops of their own."""
    found: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
    known = {name.removeprefix("aten::").partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    for full_name in sorted(name for name in known if name.startswith("_foreach_")):
        name = full_name.removeprefix("_foreach_")
        member = _MEMBERS.get(name) or getattr(torch, name, None)
        if name.endswith("_") or member is None:
            continue
        packet = getattr(aten, full_name)
        for overload in (getattr(packet, which) for which in packet.overloads()):
            if not overload._schema.is_mutable and overload not in _UNTRACEABLE:
                found[overload] = _one_by_one(overload, member)
    return found


OURS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.rrelu_with_noise_functional.default: _rrelu,
    aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize,
    aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize_channels,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _fake_quantize_tensors,
    aten._efficientzerotensor.default: _zeros,
    **list_ops(),
}
"""Decompositions of our own."""
