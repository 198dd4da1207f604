"""The module that a program is made of: a model of transformers with its loss, as the Trainer computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchipu import poptorch
from torchipu.transformers.batches import in_type
from torchipu.transformers.overflow import ClampAlways

ComputeLoss = Callable[..., Any]


class LossStep(torch.nn.Module):
    """Computes the loss of a model and, in inference, what else it returns.

    Args:
        model: A model of transformers.
        compute_loss: ``Trainer.compute_loss``; it is run while the program is captured.
    """

    def __init__(self, model: torch.nn.Module, compute_loss: ComputeLoss) -> None:
        super().__init__()
        self.model = model
        self.compute_loss = compute_loss
        self.ignore_keys: Sequence[str] = ()
        self.has_loss = True
        self.loss_only = True

    def forward(self, **inputs: Any) -> Any:
        """Return the loss, or the loss and the other results of the model, in a tuple.

        Args:
            **inputs: A batch by name, labels included.

        Returns:
            The loss, a scalar; in inference ``(loss or None, results)``.
        """
        inputs = in_type(inputs, next(self.model.parameters()).dtype)
        with ClampAlways():
            return self._computed(inputs)

    def _computed(self, inputs: dict[str, Any]) -> Any:
        if self.training:
            return poptorch.identity_loss(self.compute_loss(self.model, inputs), reduction="none")
        if not self.has_loss:
            return None, self._others(self.model(**inputs), ())
        loss, outputs = self.compute_loss(self.model, inputs, return_outputs=True)
        loss = loss.float().mean()
        return loss, () if self.loss_only else self._others(outputs, ("loss",))

    def _others(self, outputs: Any, left_out: Sequence[str]) -> tuple[Any, ...]:
        """Return the results of a model beside the loss, as ``Trainer.prediction_step`` does."""
        if isinstance(outputs, dict):
            return tuple(value for name, value in outputs.items() if name not in (*self.ignore_keys, *left_out))
        return tuple(outputs[len(left_out):])

