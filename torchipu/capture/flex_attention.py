"""Attention whose scores and mask are functions of the user's: `torch.nn.attention.flex_attention`.

Dynamo leaves one call with the graphs of both functions, for kernels that are made of them. Here it becomes products, a
softmax and the ops of these graphs for all scores, of which torch makes the backward. A block mask is no more than its
function then: all scores are computed, as in eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

_KNOWN: set[Any] = set()
_AXES = 4
"""What the functions are called with for each score: sample, head, position of the query, position of the key."""


def attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor], block_mask: Sequence[Any],
    scale: float, kernel_options: dict[str, Any], score_buffers: Sequence[Any] = (), mask_buffers: Sequence[Any] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `torch.ops.higher_order.flex_attention` does.

    Args:
        query: ``[B, H, L, E]``.
        key: ``[B or 1, H / groups, S, E]``.
        value: ``[B or 1, H / groups, S, F]``.
        score_mod: Called with a score, its four indices and what the function reads from outside.
        block_mask: Fields of a ``BlockMask``; the last one is called with four indices and says what takes part.
        scale: Factor of the products.
        kernel_options: For kernels of torch's; of no meaning here.
        score_buffers: What ``score_mod`` reads from outside.
        mask_buffers: What the mask's function reads from outside.

    Returns:
        The result ``[B, H, L, F]``, in the order of the query's memory; then, ``[B, H, L]`` and of base 2, the
        logarithm of each row's sum of exponentials and its largest score.
    """
    samples, heads, length, _ = query.shape
    rows = (samples, key.shape[1], heads // key.shape[1] * length)  # the heads of a group stand below each other
    precision = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.reshape(*rows, -1).to(precision) @ key.to(precision).transpose(-2, -1)
    scores = scores.reshape(samples, heads, length, -1) * scale
    indices = [torch.arange(size, dtype=torch.int32, device=query.device) for size in scores.shape]
    takes_part = _of_every_score(block_mask[-1], (), mask_buffers)(*indices, *mask_buffers)
    changed = _of_every_score(score_mod, (0,), score_buffers)(scores, *indices, *score_buffers)
    changed = torch.where(takes_part, changed, -math.inf)
    weights = torch._safe_softmax(changed, -1).to(query.dtype)
    result = (weights.reshape(*rows, -1) @ value.to(query.dtype)).reshape(samples, heads, length, -1)
    largest = changed.amax(-1)
    is_empty = largest == -math.inf  # of no finite sum, whose gradient would be NaN
    sums = changed.masked_fill(is_empty.unsqueeze(-1), 0.0).logsumexp(-1).masked_fill(is_empty, -math.inf)
    return _laid_out_as(result, query), sums / math.log(2), largest / math.log(2)


def _of_every_score(
    function: Callable[..., Tensor], leading: tuple[int, ...], buffers: Sequence[Any],
) -> Callable[..., Tensor]:
    """Return a function of single indices as one of all of them; innermost are the positions of keys."""
    for axis in reversed(range(_AXES)):
        mapped = tuple(0 if place == axis else None for place in range(_AXES))
        function = torch.vmap(function, (*leading, *mapped, *(None for _ in buffers)))
    return function


def _laid_out_as(result: Tensor, query: Tensor) -> Tensor:
    """Give a result the order in memory that torch says it has: that of the query."""
    order = sorted(range(query.dim()), key=query.stride, reverse=True)
    back = sorted(range(query.dim()), key=order.__getitem__)
    return result.permute(order).contiguous().permute(back)


def _check_device(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Allow gradients on the host, for which torch has no kernels; other devices as torch does."""
    if query.device.type not in ("cpu", "cuda", "xpu", "hpu", "mps"):
        raise ValueError(f"flex_attention runs on no device {query.device.type}")
    if query.device.type == "mps" and (query.requires_grad or key.requires_grad or value.requires_grad):
        raise NotImplementedError("flex_attention has no backward on MPS")


def register() -> None:
    """Let Dynamo trace flex_attention of tensors that need gradients."""
    if torch_flex._validate_device not in _KNOWN:
        _KNOWN.add(torch_flex._validate_device)
        torch.compiler.substitute_in_graph(torch_flex._validate_device, skip_signature_check=True)(_check_device)
