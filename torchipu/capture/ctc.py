"""CTC loss as one op: torch's own reads the lengths on the host, which no graph can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, library
from torch._C import DispatchKey

NONE, MEAN = 0, 1  # torch.nn._reduction


# --------------------------------------------------------------------------- what the ops mean
@library.custom_op(
    "ipu::ctc_loss", mutates_args=(),
    schema="(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, int reduction, "
    "bool zero_infinity) -> (Tensor, Tensor)",
)
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, reduction: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample, ``[N]``, and the forward variables ``[N, T, 2 S + 1]`` in logarithms.

    Both are float where the log-probabilities are half: gradients raise e to differences of them.

    Args:
        log_probs: ``[T, N, C]``.
        targets: Labels, ``[N, S]`` padded.
        input_lengths: ``[N]``.
        target_lengths: ``[N]``.
        blank: Class that stands for no label.
        reduction: How the losses are reduced afterwards; the device has no loss that is not.
        zero_infinity: Whether a loss of infinity counts as 0.
    """
    lengths = input_lengths.tolist(), target_lengths.tolist()
    loss, alpha = torch.ops.aten._ctc_loss(log_probs.to(_wide(log_probs)), targets, *lengths, blank, zero_infinity)
    if zero_infinity:
        loss = torch.where(loss == torch.inf, 0.0, loss)
    full = alpha.new_full((log_probs.shape[1], log_probs.shape[0], 2 * targets.shape[-1] + 1), -torch.inf)
    full[:, :, : alpha.shape[2]] = alpha
    # Eager goes as far as the longest sample does; what lies beyond a sample's own end is nobody's.
    time, place = (torch.arange(size) for size in full.shape[1:])
    is_inside = (time < input_lengths[:, None])[:, :, None] & (place < 2 * target_lengths[:, None] + 1)[:, None]
    return loss, torch.where(is_inside, full, -torch.inf)


@library.custom_op(
    "ipu::ctc_loss_backward", mutates_args=(),
    schema="(Tensor grad, Tensor loss, Tensor alpha, Tensor log_probs, Tensor targets, Tensor input_lengths, "
    "Tensor target_lengths, int blank, bool zero_infinity) -> Tensor",
)
def ctc_loss_backward(
    grad: Tensor, loss: Tensor, alpha: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Tensor,
    target_lengths: Tensor, blank: int, zero_infinity: bool,
) -> Tensor:
    """Return the gradient of the log-probabilities."""
    lengths = input_lengths.tolist(), target_lengths.tolist()
    values = log_probs.to(loss.dtype)
    negated, needed = torch.ops.aten._ctc_loss(values, targets, *lengths, blank, zero_infinity)
    gradient: Tensor = torch.ops.aten._ctc_loss_backward(
        grad, values, targets, *lengths, negated, needed, blank, zero_infinity,
    )
    return gradient.to(log_probs.dtype)


@ctc_loss.register_fake
def _(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, reduction: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    (time, batch), dtype = log_probs.shape[:2], _wide(log_probs)
    return (
        log_probs.new_empty(batch, dtype=dtype),
        log_probs.new_empty(batch, time, 2 * targets.shape[-1] + 1, dtype=dtype),
    )


@ctc_loss_backward.register_fake
def _(grad: Tensor, loss: Tensor, alpha: Tensor, log_probs: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(log_probs)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    log_probs, targets, input_lengths, target_lengths, ctx.blank, _, ctx.zero_infinity = inputs
    ctx.save_for_backward(*output, log_probs, targets, input_lengths, target_lengths)


def _backward(ctx: Any, grad: Tensor, _: object) -> tuple[Any, ...]:
    gradient = torch.ops.ipu.ctc_loss_backward(grad, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity)
    return gradient, *[None] * 6


ctc_loss.register_autograd(_backward, setup_context=_setup)


# --------------------------------------------------------------------------- what takes the place of torch's
def _reduced(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int],
    blank: int = 0, reduction: int = MEAN, zero_infinity: bool = False,
) -> Tensor:
    """Compute ``aten::ctc_loss`` through the op; lengths may be lists, and a lone sample may come without a batch."""
    batched = log_probs.dim() == 3
    if not batched:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    batch = log_probs.shape[1]
    first, second = (
        torch.as_tensor(lengths, device=log_probs.device).to(torch.int64).reshape(batch)
        for lengths in (input_lengths, target_lengths)
    )
    losses, _ = torch.ops.ipu.ctc_loss(
        log_probs, targets.to(torch.int64), first, second, blank, reduction, zero_infinity,
    )
    if reduction == NONE:
        result = losses if batched else losses.squeeze(0)
    else:
        result = (losses / second.clamp_min(1).to(losses.dtype)).mean() if reduction == MEAN else losses.sum()
    return result.to(log_probs.dtype)


def _wide(log_probs: Tensor) -> torch.dtype:
    return torch.float32 if log_probs.dtype in (torch.half, torch.bfloat16) else log_probs.dtype


def register() -> None:
    """Let tracing see one op, whichever backend traces: torch's own takes numbers out of tensors on the way.

    Eager mode is as it was, for it asks no Python implementation.
    """
    for overload in (torch.ops.aten.ctc_loss.Tensor, torch.ops.aten.ctc_loss.IntList):
        if DispatchKey.CompositeImplicitAutograd not in overload.py_kernels:
            overload.py_impl(DispatchKey.CompositeImplicitAutograd)(_reduced)
