"""Facts of `IPUSeq2SeqTrainer`; the judge is the Seq2SeqTrainer of transformers on the host in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.transformers import tiny
from tests.transformers.test_trainer import assert_same_weights, log
from torchipu.errors import OptionsError
from torchipu.transformers import (
    IPUConfig,
    IPUSeq2SeqTrainer,
    IPUSeq2SeqTrainingArguments,
    IPUTrainingArguments,
    layout_of,
)

ACCUMULATION, MICRO_BATCH = 9, 4  # the head, which has the weights of the embeddings, is a fifth stage
CONFIG = {
    "layers_per_ipu": [1, 1, 1, 1], "gradient_accumulation_steps": ACCUMULATION, "output_mode": "all",
    "recompute_checkpoint_every_layer": True, "inference_device_iterations": 5,
}
COMMON = {
    "num_train_epochs": 20, "logging_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no",
    "learning_rate": 0.02, "log_level": "error", "per_device_eval_batch_size": 4, "adam_epsilon": 1e-3,
    "max_grad_norm": 0.5, "lr_scheduler_type": "linear", "predict_with_generate": True, "generation_max_length": 9,
}


def found(result: transformers.EvalPrediction) -> dict[str, float]:
    """Return how many tokens are as the labels have them, and how long what was generated is."""
    length = tiny.LENGTH - 4
    same = result.predictions[:, 1 : length + 1] == result.label_ids[:, :length]
    return {"same": float(same.mean()), "length": result.predictions.shape[1]}


def pair(
    folder: Path, family: str, train: Any, evaluate: Any, **changes: Any
) -> tuple[IPUSeq2SeqTrainer, transformers.Seq2SeqTrainer]:
    """Return one of ours and its judge."""
    ours = IPUSeq2SeqTrainer(
        tiny.encoder_decoder(family), IPUConfig(**CONFIG),
        IPUSeq2SeqTrainingArguments(
            str(folder), **{**COMMON, "per_device_train_batch_size": MICRO_BATCH, "fp32": True, **changes},
        ),
        train_dataset=train, eval_dataset=evaluate, data_collator=tiny.padded, compute_metrics=found,
    )
    rows = ACCUMULATION * MICRO_BATCH
    judge = transformers.Seq2SeqTrainer(
        tiny.encoder_decoder(family),
        transformers.Seq2SeqTrainingArguments(
            str(folder), **{**COMMON, "per_device_train_batch_size": rows, "use_cpu": True, **changes},
        ),
        train_dataset=train, eval_dataset=evaluate, data_collator=tiny.padded, compute_metrics=found,
    )
    return ours, judge


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_encoder_and_decoder_over_four_ipus_train_and_generate_as_on_the_host(family: str, tmp_path: Path) -> None:
    train, evaluate = tiny.translations(4 * ACCUMULATION * MICRO_BATCH, 0), tiny.translations(10, 1)
    # At 0.02 rounding alone sends T5 another way within 25 to 50 updates, as the judge itself from one in float64.
    rate = {"t5": 0.01, "bart": 0.02}[family]
    ours, judge = pair(tmp_path, family, train, evaluate, eval_strategy="steps", eval_steps=40, learning_rate=rate)
    judge.train()
    ours.train()
    assert set(layout_of(ours.model).ipu_by_block.values()) == {0, 1, 2, 3}
    torch.testing.assert_close(log(ours, "loss")[:20], log(judge, "loss")[:20], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(log(ours, "loss"), log(judge, "loss"), atol=2e-3, rtol=2e-3)  # differences grow
    assert_same_weights(ours.model, judge.model, 5e-3)
    assert log(ours, "eval_same") == log(judge, "eval_same")
    assert log(ours, "eval_same")[-1] > log(ours, "eval_same")[0]
    assert (ours.predict(evaluate).predictions == judge.predict(evaluate).predictions).all()
    # The judge weighs ten rows as three batches do; ours has the loss of each micro-batch as often as it has rows.
    with torch.no_grad():
        losses = [judge.model(**tiny.padded(evaluate[begin : begin + 4])).loss.item() for begin in (0, 4, 8)]
    assert ours.evaluate()["eval_loss"] == pytest.approx((4 * losses[0] + 4 * losses[1] + 2 * losses[2]) / 10, abs=2e-3)


def test_beams_and_lengths_are_those_of_the_arguments_or_of_the_call(tmp_path: Path) -> None:
    evaluate = tiny.translations(6, 1)
    ours, judge = pair(tmp_path, "t5", None, evaluate, generation_num_beams=3, generation_max_length=7)
    calls = []
    generate = ours.model.generate
    ours.model.generate = lambda **given: calls.append(given) or generate(**given)
    for given in ({}, {"max_length": 5, "num_beams": 2}, {"max_new_tokens": 3}):
        one, other = ours.predict(evaluate, **given), judge.predict(evaluate, **given)
        assert (one.predictions == other.predictions).all()
        assert (one.label_ids == other.label_ids).all()
        assert one.metrics["test_length"] == other.metrics["test_length"]
    assert [(call.get("max_length"), call["num_beams"]) for call in calls] == [(7, 3), (5, 2), (None, 3)]
    without = [{name: value for name, value in row.items() if name != "labels"} for row in evaluate]
    unlabelled = ours.predict(without)
    assert unlabelled.label_ids is None
    assert "test_loss" not in unlabelled.metrics
    assert (unlabelled.predictions == judge.predict(without).predictions).all()


@pytest.mark.thorough  # as tests/transformers/test_trainer.py does
def test_without_generating_it_predicts_as_any_ipu_trainer(tmp_path: Path) -> None:
    evaluate = tiny.translations(6, 1)
    ours, judge = pair(tmp_path, "bart", None, evaluate, predict_with_generate=False)
    ours.compute_metrics = judge.compute_metrics = None
    logits, expected = ours.predict(evaluate).predictions[0], judge.predict(evaluate).predictions[0]
    torch.testing.assert_close(logits, expected, atol=5e-5, rtol=5e-5)


def test_label_smoothing_is_in_the_loss_of_the_device(tmp_path: Path) -> None:
    evaluate = tiny.translations(8, 1)
    ours, judge = pair(tmp_path, "t5", None, evaluate, label_smoothing_factor=0.2)
    for trainer in (ours, judge):  # as DataCollatorForSeq2Seq does
        prepare = trainer.model.prepare_decoder_input_ids_from_labels
        trainer.data_collator = lambda rows, prepare=prepare: (batch := tiny.padded(rows)) | {
            "decoder_input_ids": prepare(batch["labels"])
        }
    assert ours.evaluate()["eval_loss"] == pytest.approx(judge.evaluate()["eval_loss"], abs=1e-4)
    assert ours.label_smoother is not None


@pytest.mark.thorough  # halves are those of tests/transformers/test_trainer.py
def test_half_models_train_and_generate(tmp_path: Path) -> None:
    train, evaluate = tiny.translations(2 * ACCUMULATION * MICRO_BATCH, 0), tiny.translations(6, 1)
    settings = IPUSeq2SeqTrainingArguments(
        str(tmp_path), **{**COMMON, "per_device_train_batch_size": MICRO_BATCH, "num_train_epochs": 1},
    )
    ours = IPUSeq2SeqTrainer(
        tiny.encoder_decoder("bart"), IPUConfig(**CONFIG), settings, train_dataset=train, data_collator=tiny.padded,
    )
    ours.train()
    assert next(ours.model.parameters()).dtype == torch.half
    result = ours.predict(evaluate)
    assert result.predictions.shape == (6, 20)  # padded to the length of the model's own configuration
    assert torch.isfinite(torch.tensor(result.metrics["test_loss"]))


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="takes IPUSeq2SeqTrainingArguments, not IPUTrainingArguments"):
        IPUSeq2SeqTrainer(tiny.encoder_decoder("t5"), IPUConfig(), IPUTrainingArguments(str(tmp_path), report_to=[]))
    parser = transformers.HfArgumentParser(IPUSeq2SeqTrainingArguments)
    words = "--output_dir unused --predict_with_generate --generation_num_beams 2 --fp32 --report_to none"
    (arguments,) = parser.parse_args_into_dataclasses(words.split())
    assert (arguments.predict_with_generate, arguments.generation_num_beams, arguments.fp32) == (True, 2, True)
    assert arguments.gradient_accumulation_steps is None
