"""Losses of models of transformers within a program: from tensors alone, where the model would look at values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from torchipu import poptorch

IGNORED = -100
"""A label that does not count, of `torch.nn.functional.cross_entropy` and of transformers."""

Given = dict[str, Any]
Compute = Callable[[Any, Given, torch.Tensor], torch.Tensor]
"""Returns the loss of a model from the arguments of its call by name, labels among them, and from its logits."""


class LossOnDevice:
    """Hooks of a model. Within a program they take the labels from a call and put the loss into its results.

    An object, and no closure, so that the model can be copied. Without the IPU the model does all of it itself.

    Args:
        compute: The loss; None for the model's own.
    """

    def __init__(self, compute: Compute | None) -> None:
        self.compute = compute
        self._given: Given | None = None

    def before(self, model: Any, args: tuple[Any, ...], kwargs: Given) -> tuple[tuple[Any, ...], Given] | None:
        """Return the arguments without labels, where the loss is not the model's own."""
        self._given = None
        if self.compute is None or not poptorch.isRunningOnIpu():
            return None
        given = inspect.signature(model.forward).bind(*args, **kwargs)
        if not isinstance(given.arguments.get("labels"), torch.Tensor):
            return None
        self._given = {**given.arguments, **given.arguments.get("kwargs", {})}
        given.arguments["labels"] = None
        return given.args, given.kwargs

    def after(self, model: Any, args: tuple[Any, ...], kwargs: Given, results: Any) -> Any:
        """Return the results with their loss, which is the final one."""
        given, self._given = self._given, None
        if given is not None and self.compute is not None:
            named = isinstance(results, dict)
            loss = self.compute(model, given, results["logits"] if named else results[0])
            results = type(results)(**{**results, "loss": loss}) if named else (loss, *results)
        elif not isinstance(results, dict) or not isinstance(results.get("loss"), torch.Tensor):
            return results
        if isinstance(results, dict) and model.training and poptorch.isRunningOnIpu() and results["loss"].dim() == 0:
            results["loss"] = poptorch.identity_loss(results["loss"], reduction="none")
        return results


def place_loss(model: torch.nn.Module) -> None:
    """Let a model that is placed on IPUs compute its loss there.

    Args:
        model: Given hooks, which `unplace_loss` takes away.
    """
    hooks = LossOnDevice(_compute_of(model))
    model.register_forward_pre_hook(hooks.before, with_kwargs=True)
    model.register_forward_hook(hooks.after, with_kwargs=True)


def unplace_loss(model: torch.nn.Module) -> None:
    """Undo `place_loss`.

    Args:
        model: The model.
    """
    for hooks, flags in (
        (model._forward_pre_hooks, model._forward_pre_hooks_with_kwargs),
        (model._forward_hooks, model._forward_hooks_with_kwargs),
    ):
        for key, hook in list(hooks.items()):
            if isinstance(getattr(hook, "__self__", None), LossOnDevice):
                del hooks[key]
                flags.pop(key, None)


def _compute_of(model: Any) -> Compute | None:
    """Return what computes a model's loss in its place, or None where it looks at no values itself."""
    names = [kind.__name__ for kind in type(model).__mro__]
    compute = next((one for ending, one in _BY_NAME.items() if any(name.endswith(ending) for name in names)), None)
    # Which of several losses a problem has is told by its labels, unless the configuration tells it.
    return None if compute is _of_classes and model.config.problem_type is not None else compute


def _ctc(model: Any, given: Given, logits: torch.Tensor) -> torch.Tensor:
    """Return the loss of `[N, T, C]` logits whose labels `[N, S]` are not cut to their lengths."""
    labels, blank = given["labels"], model.config.pad_token_id
    counts = (labels >= 0) & (labels != blank)
    order = torch.sort(counts.int(), dim=-1, descending=True, stable=True).indices  # those that count, then the others
    targets = labels.masked_fill(~counts, 0).gather(1, order)
    mask = given.get("attention_mask")
    frames = torch.full(labels.shape[:1], logits.shape[1])
    if mask is not None:
        frames = model._get_feat_extract_output_lengths(mask.sum(-1)).to(torch.long)
    scores = functional.log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1)
    return functional.ctc_loss(
        scores, targets, frames, counts.sum(-1), blank=blank, reduction=model.config.ctc_loss_reduction,
        zero_infinity=model.config.ctc_zero_infinity,
    )


def _of_classes(model: Any, given: Given, logits: torch.Tensor) -> torch.Tensor:
    """Return the loss of `[N, C]` logits over the samples whose label is not negative."""
    labels = given["labels"]
    if model.num_labels == 1:
        return functional.mse_loss(logits.view(-1).to(labels.dtype), labels.view(-1))
    if labels.dim() > 1 and labels.size(-1) != 1:
        return -(functional.log_softmax(logits, -1) * labels).sum(-1).mean()
    labels = labels.view(-1).long()
    return functional.cross_entropy(logits.float(), labels.masked_fill(labels < 0, IGNORED), ignore_index=IGNORED)


_BY_NAME: dict[str, Compute] = {
    "ForCTC": _ctc,
    "DebertaForSequenceClassification": _of_classes,
    "DebertaV2ForSequenceClassification": _of_classes,
}
"""By the end of a class's name."""
