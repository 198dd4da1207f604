"""Encoder layers and self-attention that torch computes in one operator where no gradients are wanted, taken apart.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call these in inference; their parts have kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten

_SRC_MASK, _KEY_PADDING_MASK = 0, 1


def _attended(mask: Tensor, mask_type: int | None, shape: torch.Size) -> Tensor | None:
    """Return which keys each query attends to, to be broadcast to ``shape``, ``[B, heads, L, S]``.

    Args:
        mask: True where attention must not go.
        mask_type: 0 for a mask of ``[L, S]``, 1 for ``[B, S]``, 2 or None for one of ``shape``.
        shape: Of the scores.

    Returns:
        The mask; None for one that torch refuses.
    """
    attended = ~mask.bool()
    if mask_type == _SRC_MASK and mask.dim() == 2:
        return attended
    if mask_type == _KEY_PADDING_MASK and mask.dim() == 2:
        return attended[:, None, None, :]
    return attended if mask_type in (2, None) and mask.shape == shape else None


def _heads(x: Tensor, num_heads: int) -> Tensor:
    """Return ``[B, L, E]`` as ``[B, heads, L, E / heads]``."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _projected(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, weight: Tensor, bias: Tensor,
) -> tuple[Tensor, ...]:
    """Return the heads of queries, keys and values; of one tensor by one product."""
    if query is key and key is value:
        return tuple(_heads(part, num_heads) for part in functional.linear(query, weight, bias).chunk(3, -1))
    parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
    return tuple(_heads(functional.linear(x, w, b), num_heads) for x, w, b in parts)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> Any:
    """Attend with all heads, and project; with the weights where these are wanted, else with an empty tensor."""
    if any(x.is_nested or x.dim() != 3 for x in (query, key, value)):
        return NotImplemented
    q, k, v = _projected(query, key, value, num_head, qkv_weight, qkv_bias)
    shape = torch.Size([*q.shape[:3], k.shape[2]])
    attended = None if mask is None else _attended(mask, mask_type, shape)
    if mask is not None and attended is None:
        return NotImplemented
    if not need_weights:
        heads, weights = functional.scaled_dot_product_attention(q, k, v, attn_mask=attended), query.new_empty(0)
        if attended is not None:  # a query that attends to no key has a mean of nothing, where that op says 0
            heads = heads.masked_fill(~attended.any(-1, keepdim=True), torch.nan)
    else:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        scores = scores if attended is None else scores.masked_fill(~attended, -torch.inf)
        weights = scores.softmax(-1)
        heads = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    return functional.linear(heads.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def _encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor,
    norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor,
    ffn_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Any:
    """Attend to oneself and feed forward, each around a sum, with the norms before or behind."""

    def first(x: Tensor) -> Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    x = first(src) if norm_first else src
    made = _attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
                      need_weights=False, mask_type=mask_type)
    if made is NotImplemented:
        return NotImplemented
    x = src + made[0]
    x = x if norm_first else first(x)
    hidden = functional.linear(second(x) if norm_first else x, ffn_weight_1, ffn_bias_1)
    hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
    x = x + functional.linear(hidden, ffn_weight_2, ffn_bias_2)
    return x if norm_first else second(x)


OURS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: _attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
