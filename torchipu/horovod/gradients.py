"""Exchanges as operations of a graph of autograd: what flows back is exchanged too, as Horovod does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Exchange = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class _Exchanged(torch.autograd.Function):
    """An exchange with another one for its gradients."""

    @staticmethod
    def forward(
        ctx: Any, there: Exchange, back: Exchange, *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Exchange tensors."""
        ctx.back = back
        results = there(list(tensors))
        ctx.mark_non_differentiable(*(one for one in results if not (one.is_floating_point() or one.is_complex())))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Exchange gradients."""
        return None, None, *ctx.back([gradient.contiguous() for gradient in gradients])


def exchanged(there: Exchange, back: Exchange, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Exchange tensors, and the gradients of the results where one of the tensors needs one.

    All processes have to call `backward` alike, since gradients are exchanged in its course.

    Args:
        there: Returns the results for tensors that no graph is recorded of.
        back: Returns gradients of the tensors for those of the results.
        tensors: What is exchanged.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_Exchanged.apply(there, back, *tensors))
    with torch.no_grad():
        return there([tensor.detach() for tensor in tensors])
