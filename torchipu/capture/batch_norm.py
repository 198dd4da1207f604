"""Batch normalisation over groups of replicas: the moments of a batch that several replicas hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, library

aten = torch.ops.aten
_GROUP_SIZE: ContextVar[int] = ContextVar("group_size", default=1)

library.define("torchipu::replica_mean", "(Tensor self, int group_size) -> Tensor")


@library.impl("torchipu::replica_mean", "CompositeExplicitAutograd")
def _alone(value: Tensor, group_size: int) -> Tensor:
    return value.clone()  # outside of a program there is one replica


@library.register_fake("torchipu::replica_mean")  # type: ignore[untyped-decorator]
def _like(value: Tensor, group_size: int) -> Tensor:
    return torch.empty_like(value)


@contextmanager
def moments_over(group_size: int) -> Iterator[None]:
    """Let batch normalisations that are captured take their moments over replicas.

    Args:
        group_size: How many neighbouring replicas make a group; 1 leaves each to itself.
    """
    token = _GROUP_SIZE.set(group_size)
    try:
        yield
    finally:
        _GROUP_SIZE.reset(token)


def over_replicas() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Return what batch normalisations are taken apart into; nothing where each replica is left to itself."""
    if _GROUP_SIZE.get() == 1:
        return {}
    return {
        aten._native_batch_norm_legit_functional.default: _with_running_statistics,
        aten._native_batch_norm_legit.no_stats: _without_running_statistics,
        aten.native_batch_norm_backward.default: _backward,
    }


def _mean(value: Tensor) -> Tensor:
    found: Tensor = torch.ops.torchipu.replica_mean(value, _GROUP_SIZE.get())
    return found


def _along_channels(value: Tensor, like: Tensor) -> Tensor:
    return value.float().view(1, -1, *(1,) * (like.dim() - 2))


def _others(value: Tensor) -> list[int]:
    return [dim for dim in range(value.dim()) if dim != 1]


def _normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return result, mean, reciprocal deviation and variance, all of the group; in float whatever the input.

    The variance is taken about the group's mean: the difference of mean square and squared mean loses too much.
    """
    wide, dims = x.float(), _others(x)
    mean = _mean(wide.mean(dims))
    centred = wide - _along_channels(mean, x)
    variance = _mean(centred.square().mean(dims))
    rstd = torch.rsqrt(variance + eps)
    result = centred * _along_channels(rstd, x)
    if weight is not None:
        result = result * _along_channels(weight, x)
    if bias is not None:
        result = result + _along_channels(bias, x)
    return result.to(x.dtype), mean, rstd, variance


def _with_running_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, training: bool,
    momentum: float, eps: float,
) -> Any:
    if not training:
        return NotImplemented
    result, mean, rstd, variance = _normalise(x, weight, bias, eps)
    count = _GROUP_SIZE.get() * x.numel() // x.shape[1]
    unbiased = variance * (count / max(1, count - 1))
    means = (running_mean * (1 - momentum) + mean * momentum).to(running_mean.dtype)
    variances = (running_var * (1 - momentum) + unbiased * momentum).to(running_var.dtype)
    kept = x.dtype if weight is None else weight.dtype
    return result, mean.to(kept), rstd.to(kept), means, variances


def _is_of_one_sample(x: Tensor, running_mean: Tensor | None) -> bool:
    """Whether this is an instance normalisation, which torch writes as one of a batch of one, without statistics."""
    return running_mean is None and x.shape[0] == 1


def _without_running_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    if not training or _is_of_one_sample(x, None):
        return NotImplemented
    result, mean, rstd, _ = _normalise(x, weight, bias, eps)
    kept = x.dtype if weight is None else weight.dtype
    return result, mean.to(kept), rstd.to(kept)


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    saved_mean: Tensor | None, saved_rstd: Tensor | None, train: bool, eps: float, output_mask: list[bool],
) -> Any:
    if not train or _is_of_one_sample(x, running_mean):
        return NotImplemented
    assert saved_mean is not None
    assert saved_rstd is not None
    wide, dims, rstd = grad.float(), _others(x), _along_channels(saved_rstd, x)
    normal = (x.float() - _along_channels(saved_mean, x)) * rstd
    count = x.numel() // x.shape[1]
    total, total_normal = wide.sum(dims), (wide * normal).sum(dims)
    dx = None
    if output_mask[0]:
        mean, mean_normal = _mean(total / count), _mean(total_normal / count)
        dx = (wide - _along_channels(mean, x) - normal * _along_channels(mean_normal, x)) * rstd
        dx = (dx if weight is None else dx * _along_channels(weight, x)).to(x.dtype)
    kept = x.dtype if weight is None else weight.dtype
    # Gradients of weights stay apart: they are added up over all replicas with the others.
    return dx, total_normal.to(kept) if output_mask[1] else None, total.to(kept) if output_mask[2] else None
