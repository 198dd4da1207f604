"""`IPUSeq2SeqTrainer`: an `IPUTrainer` that generates when it evaluates, as the Seq2SeqTrainer of transformers does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from torchipu.errors import OptionsError
from torchipu.transformers.batches import in_type
from torchipu.transformers.trainer import IPUTrainer
from torchipu.transformers.training_arguments import IPUTrainingArguments


@dataclass
class IPUSeq2SeqTrainingArguments(IPUTrainingArguments, Seq2SeqTrainingArguments):
    """Arguments of `IPUSeq2SeqTrainer`: those of `IPUTrainer`, and transformers' for what is generated."""


class IPUSeq2SeqTrainer(IPUTrainer, Seq2SeqTrainer):
    """Trains a model with an encoder and a decoder on IPUs; with ``predict_with_generate`` evaluation generates.

    Losses are computed on the device, in training and in evaluation. What generates is ``model.generate`` of
    transformers, on the host, with the weights of the device: the reports know nothing of it.

    Arguments are those of `IPUTrainer`.

    Raises:
        OptionsError: Arguments exclude each other.
    """

    args: IPUSeq2SeqTrainingArguments
    label_smoother: Any

    def __init__(
        self, model: Any = None, ipu_config: Any = None, args: IPUSeq2SeqTrainingArguments | None = None, **kwargs: Any
    ) -> None:
        args = IPUSeq2SeqTrainingArguments(output_dir="tmp_trainer") if args is None else args
        if not isinstance(args, IPUSeq2SeqTrainingArguments):
            raise OptionsError(
                f"IPUSeq2SeqTrainer takes IPUSeq2SeqTrainingArguments, not {type(args).__name__}", option="args",
                value=args, remedy="make them with torchipu.transformers.IPUSeq2SeqTrainingArguments",
            )
        super().__init__(model, ipu_config, args, **kwargs)

    def prediction_step(
        self, model: Any, inputs: Mapping[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Return the loss of each row, the tokens that are generated, and the labels, both padded.

        Args:
            model: Not looked at.
            inputs: A batch of any number of rows.
            prediction_loss_only: Whether the loss is all that is wanted.
            ignore_keys: Names of results that are not wanted, where nothing is generated.
            **gen_kwargs: Arguments of ``generate``; those of ``evaluate`` or ``predict`` if there are none.
        """
        if not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        losses = super().prediction_step(model, inputs, True)[0] if inputs.get("labels") is not None else None
        batch = in_type(dict(inputs), next(self.model.parameters()).dtype)
        smoother, self.label_smoother = self.label_smoother, None  # the losses are known
        try:
            _, tokens, labels = Seq2SeqTrainer.prediction_step(
                self, lambda **_: {"loss": losses}, batch, False, ignore_keys, **gen_kwargs,
            )
        finally:
            self.label_smoother = smoother
        return losses, tokens, labels
