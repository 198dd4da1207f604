"""Which result is the loss: `identity_loss` marks one, and calls of torch's own losses are noted while captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from torchipu.poptorch.capturing import answered_at_capture
from torchipu.poptorch.poptorch_core import createPoptorchError

LOSSES = frozenset({
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy",
    "cross_entropy_loss", "ctc_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
    "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
    "nll_loss", "nll_loss2d", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
})
"""Names of the functions of torch whose result can be the loss without being marked."""

NO_LOSS = (
    "Couldn't find a loss in graph! Compute it in forward by a loss function of torch.nn.functional, or mark what is "
    "to become small: return poptorch.identity_loss(loss, reduction='mean')."
)
MANY_LOSSES = (
    "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in "
    "poptorch.identity_loss."
)


@dataclass(slots=True)
class _Loss:
    tensor: torch.Tensor
    is_marked: bool
    made_of: frozenset[int]


@dataclass(slots=True)
class LossTracker:
    """Notes the losses of one run of ``forward``, and which of them each tensor was computed from."""

    losses: list[_Loss] = field(default_factory=list)
    sources: dict[int, frozenset[int]] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def note(self, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Note a call into torch."""
        made_of: frozenset[int] = frozenset()
        if self.sources:
            for tensor in _tensors((args, kwargs)):
                made_of |= self.sources.get(id(tensor), frozenset())
        if getattr(function, "__name__", "") in LOSSES and isinstance(result, torch.Tensor):
            self._add(result, False, made_of)
        elif made_of:
            for tensor in _tensors(result):
                self._trace(tensor, made_of)

    def mark(self, tensor: torch.Tensor) -> None:
        """Note a tensor that `identity_loss` returned."""
        self._add(tensor, True, self.sources.get(id(tensor), frozenset()))

    def _add(self, tensor: torch.Tensor, is_marked: bool, made_of: frozenset[int]) -> None:
        number = len(self.losses)
        self.losses.append(_Loss(tensor, is_marked, made_of))
        self._trace(tensor, made_of | {number})

    def _trace(self, tensor: torch.Tensor, made_of: frozenset[int]) -> None:
        self.kept.append(tensor)  # so that its id is not given to another
        self.sources[id(tensor)] = self.sources.get(id(tensor), frozenset()) | made_of

    def final(self) -> torch.Tensor:
        """Return the loss that training goes back from.

        Raises:
            Error: There is none, there are several with nothing to join them, or it is no scalar.
        """
        numbers = [n for n, loss in enumerate(self.losses) if loss.is_marked] or list(range(len(self.losses)))
        consumed: set[int] = set()
        for number in numbers:
            consumed |= self.losses[number].made_of
        finals = [number for number in numbers if number not in consumed]
        if not finals:
            raise createPoptorchError(NO_LOSS)
        if len(finals) > 1:
            raise createPoptorchError(MANY_LOSSES)
        loss = self.losses[finals[0]].tensor
        if loss.numel() != 1:
            raise createPoptorchError(
                f"The final loss must be a scalar, but its shape is {list(loss.shape)}. Reduce it, for instance with "
                "poptorch.identity_loss(loss, reduction='mean')."
            )
        return loss


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from _tensors(member)
    elif isinstance(value, dict):
        for member in value.values():
            yield from _tensors(member)


_TRACKER: ContextVar[LossTracker | None] = ContextVar("tracker", default=None)


@answered_at_capture
def _tracker_now() -> LossTracker | None:
    return _TRACKER.get()


def set_tracker(tracker: LossTracker | None) -> LossTracker | None:
    """Let `identity_loss` tell a tracker; return the one before."""
    before = _TRACKER.get()
    _TRACKER.set(tracker)
    return before


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Reduce a tensor and mark the result as the loss of the model.

    Args:
        x: Any tensor computed from the model's output.
        reduction: ``sum``, ``mean`` or ``none``.

    Returns:
        ``x.sum()``, ``x.mean()``, or a copy of ``x``.
    """
    if reduction not in ("sum", "mean", "none"):
        raise AssertionError("Unsupported reduction type!")
    if reduction == "sum":
        value = x.sum()
    elif reduction == "mean":
        value = x.mean()
    else:
        value = x.clone()
    if (tracker := _tracker_now()) is not None:
        tracker.mark(value)
    return value
