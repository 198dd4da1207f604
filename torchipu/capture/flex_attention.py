"""Attention whose scores and mask are functions of the user's: `torch.nn.attention.flex_attention`.

Dynamo leaves one call with the graphs of both functions, for kernels that are made of them. Here it becomes products, a
softmax and the ops of these graphs, of which torch makes the backward. Blocks of scores that a mask leaves out are not
computed where its function depends on positions alone: `block_sparsity`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention import flex_attention as torch_flex

from torchipu.capture.block_sparsity import Section, Span, sections

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
    mask = _of_every_score(block_mask[-1], (), mask_buffers)
    samples, heads, length, _ = query.shape
    whole = (samples, heads, length, key.shape[-2])
    # What a function reads from outside may be another at the next call.
    cut = sections(block_mask[-1], whole, mask) if not mask_buffers else (Section(((0, length),), ((0, whole[3]),)),)
    changes = _of_every_score(score_mod, (0,), score_buffers)

    def masked(scores: Tensor, *indices: Tensor) -> Tensor:
        changed = changes(scores, *indices, *score_buffers)
        return torch.where(mask(*indices, *mask_buffers), changed, -math.inf)

    parts = [_of_section(query, key, value, masked, scale, section) for section in cut]
    result, sums, largest = (_in_order(each, cut) for each in zip(*parts, strict=True))
    return _laid_out_as(result, query), sums / math.log(2), largest / math.log(2)


def _of_section(
    query: Tensor, key: Tensor, value: Tensor, masked: Callable[..., Tensor], scale: float, section: Section,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute some rows of the result, the logarithms of their sums and their largest scores, of base e."""
    query = _runs(query, section.rows)
    key, value = (_runs(each, section.keys) for each in (key, value))
    samples, heads, length, _ = query.shape
    rows = (samples, key.shape[1], heads // key.shape[1] * length)  # the heads of a group stand below each other
    precision = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.reshape(*rows, -1).to(precision) @ key.to(precision).transpose(-2, -1)
    scores = scores.reshape(samples, heads, length, -1) * scale
    spans = (((0, samples),), ((0, heads),), section.rows, section.keys)
    changed = masked(scores, *(_numbers(each, query.device) for each in spans))
    weights = torch._safe_softmax(changed, -1).to(query.dtype)
    result = (weights.reshape(*rows, -1) @ value.to(query.dtype)).reshape(samples, heads, length, -1)
    largest = changed.amax(-1)
    is_empty = largest == -math.inf  # of no finite sum, whose gradient would be NaN
    sums = changed.masked_fill(is_empty.unsqueeze(-1), 0.0).logsumexp(-1).masked_fill(is_empty, -math.inf)
    return result, sums, largest


def _runs(tensor: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return runs of the rows of ``[..., S, E]`` one behind the other."""
    return _joined([tensor[..., begin:end, :] for begin, end in spans], -2)


def _numbers(spans: Sequence[Span], device: torch.device) -> Tensor:
    """Return the positions in runs one behind the other."""
    return _joined([torch.arange(begin, end, dtype=torch.int32, device=device) for begin, end in spans], 0)


def _in_order(parts: Sequence[Tensor], cut: Sequence[Section]) -> Tensor:
    """Put the rows of ``[B, H, rows, ...]`` of all sections where they belong."""
    pieces: dict[int, Tensor] = {}
    for part, section in zip(parts, cut, strict=True):
        runs = part.split([end - begin for begin, end in section.rows], 2) if len(section.rows) > 1 else (part,)
        pieces |= {begin: run for (begin, _), run in zip(section.rows, runs, strict=True)}
    return _joined([pieces[begin] for begin in sorted(pieces)], 2)


def _joined(pieces: Sequence[Tensor], dim: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim)


def _of_every_score(
    function: Callable[..., Tensor], leading: tuple[int, ...], buffers: Sequence[Any],
) -> Callable[..., Tensor]:
    """Return a function of single indices as one of all of them; innermost are the positions of keys."""
    for axis in reversed(range(_AXES)):
        mapped = tuple(0 if place == axis else None for place in range(_AXES))
        function = torch.vmap(function, (*leading, *mapped, *(None for _ in buffers)))

    def of_all(*args: Any) -> Tensor:
        with TransformGetItemToIndex():  # ``table[h]`` of a number that vmap holds asks it for its value otherwise
            return function(*args)

    return of_all


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
