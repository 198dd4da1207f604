"""Facts of `IPUTrainer`; the judge is the Trainer of transformers on the host in float32, with the same batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.transformers import tiny
from torchipu.errors import ConstraintError, OptionsError
from torchipu.transformers import FixedLengthCollator, IPUConfig, IPUTrainer, IPUTrainingArguments, layout_of

ACCUMULATION = 7
MICRO_BATCH = 2
PIPELINED = {
    "layers_per_ipu": [1, 1, 1, 1], "gradient_accumulation_steps": ACCUMULATION, "output_mode": "all",
    "recompute_checkpoint_every_layer": True, "inference_device_iterations": 4,
}
TWO_IPUS = {**PIPELINED, "layers_per_ipu": [1, 1], "gradient_accumulation_steps": 3, "inference_device_iterations": 2}
COMMON = {
    "num_train_epochs": 2, "logging_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no",
    "learning_rate": 0.01, "log_level": "error", "per_device_eval_batch_size": 4, "adam_epsilon": 1e-3,
    "weight_decay": 0.1, "max_grad_norm": 0.5, "lr_scheduler_type": "linear", "warmup_steps": 2,
}


def right(found: transformers.EvalPrediction) -> dict[str, float]:
    return {"right": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def make_judge(folder: Path, model: Any, rows: int, train: Any, evaluate: Any, **arguments: Any) -> Any:
    settings = transformers.TrainingArguments(
        str(folder), **{
            **COMMON, "use_cpu": True, "per_device_train_batch_size": rows, "dataloader_drop_last": False, **arguments,
        },
    )
    return transformers.Trainer(
        model, settings, train_dataset=train, eval_dataset=evaluate, data_collator=tiny.padded, compute_metrics=right,
    )


def make_ours(
    folder: Path, model: Any, train: Any, evaluate: Any, config: Mapping[str, Any] = PIPELINED, **arguments: Any
) -> IPUTrainer:
    extra = {name: arguments.pop(name) for name in ("data_collator", "optimizers") if name in arguments}
    kind = extra.pop("kind", None) or arguments.pop("kind", IPUTrainer)
    settings = IPUTrainingArguments(
        str(folder), **{**COMMON, "per_device_train_batch_size": MICRO_BATCH, "fp32": True, **arguments},
    )
    return kind(
        model, IPUConfig(**config), settings, train_dataset=train, eval_dataset=evaluate, compute_metrics=right,
        **{"data_collator": tiny.padded, **extra},
    )


def log(trainer: transformers.Trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def assert_same_weights(ours: torch.nn.Module, judge: torch.nn.Module, tolerance: float = 5e-5) -> None:
    for (name, value), expected in zip(ours.state_dict().items(), judge.state_dict().values(), strict=True):
        assert type(value) is torch.Tensor
        assert (value - expected).abs().max() <= tolerance * (1 + expected.abs().max()), name


def test_pipelined_training_follows_the_trainer_on_the_host(tmp_path: Path) -> None:
    """BERT over four IPUs, recomputed, clipped, with decay and a schedule: losses, rates, weights, evaluation."""
    train, evaluate = tiny.rows(4 * ACCUMULATION * MICRO_BATCH, 0), tiny.rows(11, 1)
    judge = make_judge(tmp_path, tiny.bert(4), ACCUMULATION * MICRO_BATCH, train, evaluate)
    judge.train()
    trainer = make_ours(tmp_path, tiny.bert(4), train, evaluate)
    result = trainer.train()
    assert result.global_step == trainer.state.global_step == 8
    assert set(layout_of(trainer.model).ipu_by_block.values()) == {0, 1, 2, 3}
    torch.testing.assert_close(log(trainer, "loss"), log(judge, "loss"), atol=2e-5, rtol=2e-5)
    assert log(trainer, "learning_rate") == log(judge, "learning_rate")
    assert_same_weights(trainer.model, judge.model)
    assert type(trainer.model) is transformers.BertForSequenceClassification

    # Eleven rows are two micro-batches of four and one of three, each with a loss of its own.
    losses = []
    with torch.no_grad():
        for begin in (0, 4, 8):
            part = tiny.padded(evaluate[begin : begin + 4])
            losses += [judge.model(**part).loss.item()] * len(part["labels"])
    found = trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(sum(losses) / 11, abs=2e-5)
    assert found["eval_right"] == judge.evaluate()["eval_right"]
    predicted, expected = trainer.predict(evaluate), judge.predict(evaluate)
    assert predicted.predictions.shape == (11, 2)
    torch.testing.assert_close(predicted.predictions, expected.predictions, atol=5e-5, rtol=5e-5)
    assert (predicted.label_ids == expected.label_ids).all()
    unlabelled = [{name: value for name, value in row.items() if name != "labels"} for row in evaluate]
    torch.testing.assert_close(trainer.predict(unlabelled).predictions, expected.predictions, atol=5e-5, rtol=5e-5)


def test_replicas_and_device_iterations_make_larger_calls(tmp_path: Path) -> None:
    """Two replicas and two updates a call, so that a call is two steps of the judge; the rate is constant."""
    config = {
        "layers_per_ipu": [1, 1], "gradient_accumulation_steps": 3, "replication_factor": 2, "device_iterations": 2,
        "inference_replication_factor": 2, "inference_device_iterations": 2, "output_mode": "all",
        "replicated_tensor_sharding": True, "optimizer_state_offchip": True,
    }
    constant = {"lr_scheduler_type": "constant", "warmup_steps": 0, "num_train_epochs": 1}
    rows = 3 * 2 * MICRO_BATCH
    train, evaluate = tiny.rows(4 * rows, 0), tiny.rows(9, 1)
    judge = make_judge(tmp_path, tiny.bert(2), rows, train, evaluate, **constant)
    judge.train()
    trainer = make_ours(tmp_path, tiny.bert(2), train, evaluate, config, **constant)
    trainer.train()
    assert trainer.state.global_step == 2
    assert trainer.get_total_train_batch_size(trainer.args) == 2 * rows
    steps = log(judge, "loss")
    means = [(steps[0] + steps[1]) / 2, (steps[2] + steps[3]) / 2]
    torch.testing.assert_close(log(trainer, "loss"), means, atol=2e-5, rtol=2e-5)
    assert_same_weights(trainer.model, judge.model)
    assert trainer.evaluate()["eval_right"] == judge.evaluate()["eval_right"]


@pytest.mark.suffices(reentrant=[True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_trains_as_without(reentrant: bool, tmp_path: Path) -> None:
    train = tiny.rows(2 * 3 * MICRO_BATCH, 0)
    arguments = {"max_steps": 2, "warmup_steps": 0, "lr_scheduler_type": "constant"}
    judge = make_judge(tmp_path, tiny.bert(2), 3 * MICRO_BATCH, train, train, **arguments)
    judge.train()
    config = {"layers_per_ipu": [1, 1], "gradient_accumulation_steps": 3, "output_mode": "all"}
    trainer = make_ours(
        tmp_path, tiny.bert(2), train, train, config, gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": reentrant}, **arguments,
    )
    trainer.train()
    assert trainer.model.is_gradient_checkpointing
    torch.testing.assert_close(log(trainer, "loss"), log(judge, "loss"), atol=2e-5, rtol=2e-5)
    assert_same_weights(trainer.model, judge.model)


@pytest.mark.thorough  # optimisers are those of tests/poptorch/test_optim.py
@pytest.mark.parametrize("optim", ["sgd", "rmsprop"])
def test_other_optimisers_update_alike(optim: str, tmp_path: Path) -> None:
    train = tiny.rows(4 * 2 * MICRO_BATCH, 0)
    arguments = {"optim": optim, "max_grad_norm": 0.0, "num_train_epochs": 1, "warmup_steps": 0}
    judge = make_judge(tmp_path, tiny.bert(1), 2 * MICRO_BATCH, train, train, **arguments)
    judge.train()
    config = {"layers_per_ipu": [1], "gradient_accumulation_steps": 2, "output_mode": "sum"}
    trainer = make_ours(tmp_path, tiny.bert(1), train, train, config, **arguments)
    trainer.train()
    torch.testing.assert_close(log(trainer, "loss"), log(judge, "loss"), atol=5e-5, rtol=5e-5)
    assert_same_weights(trainer.model, judge.model, 2e-4)


def test_run_that_is_interrupted_and_resumed_ends_in_the_same_bits(tmp_path: Path, is_thorough: bool) -> None:
    """With dropout, evaluation in between, and where all is asked for the best model loaded at the end."""
    train, evaluate = tiny.rows(4 * 3 * MICRO_BATCH, 0), tiny.rows(8, 1)

    def make(folder: str, **changes: Any) -> IPUTrainer:
        arguments = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3, **changes}
        model = tiny.bert(2, hidden_dropout_prob=0.2)
        return make_ours(tmp_path / folder, model, train, evaluate, TWO_IPUS, **arguments)

    whole = make("whole")
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "ipu_config.json", "ipu_random_state.json"} <= {
        file.name for file in checkpoint.iterdir()
    }
    assert IPUConfig.from_pretrained(checkpoint) == whole.ipu_config
    resumed = make("resumed")
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert log(resumed, "loss") == log(whole, "loss")
    for (name, value), expected in zip(
        resumed.model.state_dict().items(), whole.model.state_dict().values(), strict=True
    ):
        assert torch.equal(value, expected), name
    if not is_thorough:
        return
    best = make("best", load_best_model_at_end=True, metric_for_best_model="loss", max_steps=6)
    best.train()
    losses = {3: log(best, "eval_loss")[0], 6: log(best, "eval_loss")[1]}
    assert best.evaluate()["eval_loss"] == pytest.approx(min(losses.values()), abs=1e-6)
    loaded = transformers.BertForSequenceClassification.from_pretrained(best.state.best_model_checkpoint)
    assert_same_weights(best.model, loaded, 0.0)


def test_half_is_the_default_and_trains(tmp_path: Path) -> None:
    train = tiny.rows(4 * 3 * MICRO_BATCH, 0)
    judge = make_judge(tmp_path, tiny.bert(2), 3 * MICRO_BATCH, train, train)
    judge.train()
    trainer = make_ours(tmp_path, tiny.bert(2), train, train, TWO_IPUS, fp32=False, loss_scaling=64.0)
    trainer.train()
    assert {value.dtype for value in trainer.model.state_dict().values() if value.is_floating_point()} == {torch.half}
    torch.testing.assert_close(log(trainer, "loss"), log(judge, "loss"), atol=5e-3, rtol=5e-3)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(judge.evaluate()["eval_loss"], abs=1e-2)


def test_language_model_trains_over_two_ipus_with_its_head_beside_the_embeddings(tmp_path: Path) -> None:
    config = {"layers_per_ipu": [1, 1], "gradient_accumulation_steps": 5, "output_mode": "all",
              "embedding_serialization_factor": 2, "inference_device_iterations": 3}
    train = tiny.texts(3 * 5 * MICRO_BATCH, 0)
    judge = make_judge(tmp_path, tiny.gpt2(2), 5 * MICRO_BATCH, train, train)
    judge.compute_metrics = None
    judge.train()
    trainer = make_ours(tmp_path, tiny.gpt2(2), train, train, config, lamb=False)
    trainer.compute_metrics = None
    trainer.train()
    assert layout_of(trainer.model).ipu_by_block["lm_head"] == 0
    torch.testing.assert_close(log(trainer, "loss"), log(judge, "loss"), atol=2e-5, rtol=2e-5)
    assert_same_weights(trainer.model, judge.model)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(judge.evaluate()["eval_loss"], abs=1e-4)


class Weighted(IPUTrainer):
    """Has a loss of its own, as users of the Trainer write it."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="none")
        loss = (loss * (1 + labels)).mean()
        return (loss, outputs) if return_outputs else loss


def test_overridden_loss_is_the_loss_of_the_program(tmp_path: Path) -> None:
    train = tiny.rows(2 * 2 * MICRO_BATCH, 0)
    config = {"layers_per_ipu": [1], "gradient_accumulation_steps": 2, "output_mode": "all"}
    trainer = make_ours(tmp_path, tiny.bert(1), train, train, config, kind=Weighted, num_train_epochs=1)
    trainer.train()
    loader = trainer.get_train_dataloader()
    loader.set_epoch(0)
    model, first = tiny.bert(1), next(iter(loader))
    logits = model.train()(input_ids=first["input_ids"], attention_mask=first["attention_mask"]).logits
    losses = torch.nn.functional.cross_entropy(logits, first["labels"], reduction="none") * (1 + first["labels"])
    assert log(trainer, "loss")[0] == pytest.approx(losses.mean().item(), abs=2e-5)


@pytest.mark.thorough  # test_seq2seq.py smooths labels, tests/poptorch/test_optim.py has LAMB
def test_label_smoothing_and_lamb_run(tmp_path: Path) -> None:
    train = tiny.rows(4 * 2 * MICRO_BATCH, 0)
    config = {"layers_per_ipu": [1], "gradient_accumulation_steps": 2, "output_mode": "all"}
    arguments = {"label_smoothing_factor": 0.1, "num_train_epochs": 1}
    judge = make_judge(tmp_path, tiny.bert(1), 2 * MICRO_BATCH, train, train, **arguments)
    judge.train()
    trainer = make_ours(tmp_path, tiny.bert(1), train, train, config, lamb=True, **arguments)
    trainer.train()
    assert type(trainer.optimizer).__name__ == "LAMB"
    # Before the first update the optimiser is of no account.
    assert log(trainer, "loss")[0] == pytest.approx(log(judge, "loss")[0], abs=2e-5)
    assert log(trainer, "loss")[-1] != pytest.approx(log(trainer, "loss")[0], abs=1e-4)


def test_batches_of_several_lengths_are_refused_in_training_unless_padded_to_one(tmp_path: Path) -> None:
    train = tiny.rows(4 * 2 * MICRO_BATCH, 0, shortest=5)
    config = {"layers_per_ipu": [1], "gradient_accumulation_steps": 2, "output_mode": "all"}
    with pytest.raises(ConstraintError, match="training was compiled for a batch of other shapes") as refusal:
        make_ours(tmp_path, tiny.bert(1), train, train, config).train()
    assert "input_ids was [4, 1" in str(refusal.value)
    assert "FixedLengthCollator" in refusal.value.remedy

    collator = FixedLengthCollator(tiny.padded, tiny.LENGTH)
    judge = make_judge(tmp_path, tiny.bert(1), 2 * MICRO_BATCH, train, train)
    judge.train()
    trainer = make_ours(tmp_path, tiny.bert(1), train, train, config, data_collator=collator)
    trainer.train()
    torch.testing.assert_close(log(trainer, "loss"), log(judge, "loss"), atol=2e-5, rtol=2e-5)


def test_collator_pads_columns_and_refuses_longer_rows() -> None:
    rows = [{"input_ids": [5, 6], "attention_mask": [1, 1], "labels": [7, 8]}]
    batch = FixedLengthCollator(tiny.padded, 4, pad_token_id=9, values={"attention_mask": 0})(rows)
    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[5, 6, 9, 9]], "attention_mask": [[1, 1, 0, 0]], "labels": [[7, 8, -100, -100]],
    }
    with pytest.raises(OptionsError, match="a row of 2 tokens does not fit a length of 1"):
        FixedLengthCollator(tiny.padded, 1)(rows)


def test_arguments_change_the_configuration() -> None:
    arguments = IPUTrainingArguments(
        "unused", n_ipu=8, gradient_accumulation_steps=3, seed=5, report_to=[],
        ipu_config_overrides="device_iterations=2,layers_per_ipu=[2 -1],output_mode=all,optimizer_state_offchip=true",
    )
    config = arguments.applied_to(IPUConfig(ipus_per_replica=2))
    assert (config.replication_factor, config.gradient_accumulation_steps, config.seed) == (4, 3, 5)
    assert (config.device_iterations, config.layers_per_ipu, config.output_mode) == (2, (2, -1), "all")
    assert config.optimizer_state_offchip is True
    by_pod = IPUConfig(replication_factor={"default": 1, "pod16": 4})
    assert IPUTrainingArguments("unused", pod_type="pod16", report_to=[]).applied_to(by_pod).replication_factor == 4


@pytest.mark.parametrize(("arguments", "words"), [
    ({"fp16": True}, "fp16 is not for the IPU"),
    ({"torch_compile": True}, "torch_compile is not for the IPU"),
    ({"auto_find_batch_size": True}, "auto_find_batch_size is not for the IPU"),
    ({"dataloader_mode": "asynch"}, "dataloader_mode='asynch' is unknown; did you mean 'async'"),
])
def test_arguments_that_are_not_for_the_ipu_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        IPUTrainingArguments("unused", report_to=[], **arguments)


def test_contradictions_are_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="n_ipu=6 are no whole replicas of 4 IPUs"):
        make_ours(tmp_path, tiny.bert(4), None, None, n_ipu=6)
    with pytest.raises(OptionsError, match="ipu_config_overrides: 'layer=1' changes nothing"):
        make_ours(tmp_path, tiny.bert(4), None, None, ipu_config_overrides="layer=1")
    with pytest.raises(OptionsError, match="IPUTrainer takes IPUTrainingArguments, not TrainingArguments"):
        IPUTrainer(tiny.bert(1), IPUConfig(), transformers.TrainingArguments("unused", report_to=[]))
    with pytest.raises(OptionsError, match="one call takes 14 rows and the dataset has 13"):
        make_ours(tmp_path, tiny.bert(4), tiny.rows(13, 0), None).train()
    with pytest.raises(OptionsError, match="optim='adafactor' is not one that weights are updated by"):
        make_ours(tmp_path, tiny.bert(4), tiny.rows(14, 0), None, optim="adafactor").train()
    with pytest.raises(OptionsError, match="places 4 layers, and the model has 3"):
        make_ours(tmp_path, tiny.bert(3), tiny.rows(14, 0), None).train()


def test_compile_only_compiles_and_leaves_the_weights(tmp_path: Path) -> None:
    trainer = make_ours(tmp_path, tiny.bert(2), tiny.rows(12, 0), None, TWO_IPUS, compile_only=True)
    trainer.train()
    assert_same_weights(trainer.model, tiny.bert(2), 0.0)


def test_weights_come_back_when_training_is_interrupted(tmp_path: Path) -> None:
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                raise KeyboardInterrupt

    trainer = make_ours(tmp_path, tiny.bert(2), tiny.rows(4 * 6, 0), None, TWO_IPUS, num_train_epochs=1)
    trainer.add_callback(Stop())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert type(trainer.model.classifier.weight) is torch.nn.Parameter
    assert not torch.equal(trainer.model.classifier.weight, tiny.bert(2).classifier.weight)
    assert trainer.args.gradient_accumulation_steps == 3


def test_asynchronous_loading_a_cache_and_an_optimiser_of_torch_change_no_values(tmp_path: Path) -> None:
    train = tiny.rows(4 * 2 * MICRO_BATCH, 0)
    config = {"layers_per_ipu": [1], "gradient_accumulation_steps": 2, "output_mode": "all"}
    arguments = {"max_grad_norm": 0.0, "weight_decay": 0.01, "num_train_epochs": 1}
    plain = make_ours(tmp_path, tiny.bert(1), train, train, config, **arguments)
    plain.train()
    for _ in range(2):
        model = tiny.bert(1)
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3, weight_decay=0.01)
        trainer = make_ours(
            tmp_path, model, train, train, {**config, "executable_cache_dir": str(tmp_path / "cache")},
            optimizers=(optimiser, None), dataloader_mode="async", **arguments,
        )
        trainer.train()
        # Every parameter decays with this one, also biases.
        torch.testing.assert_close(log(trainer, "loss"), log(plain, "loss"), atol=5e-4, rtol=5e-4)
        assert trainer.optimizer is optimiser
        assert len(list((tmp_path / "cache").rglob("*.*"))) > 0
    assert optimiser.state[model.classifier.weight]["step"] == 4
    assert "step" not in vars(optimiser)  # it can be used on the host again


def test_swapped_arguments_are_refused(tmp_path: Path) -> None:
    settings = IPUTrainingArguments(str(tmp_path), report_to=[])
    with pytest.raises(OptionsError, match="IPUTrainer takes an IPUConfig, not IPUTrainingArguments"):
        IPUTrainer(tiny.bert(1), settings)
    trainer = IPUTrainer(tiny.bert(1), IPUConfig(gradient_accumulation_steps=4), settings)
    assert trainer.args.gradient_accumulation_steps == 4
    assert settings.gradient_accumulation_steps is None  # so that another trainer takes what its configuration says


def test_arguments_are_read_from_a_command_line() -> None:
    parser = transformers.HfArgumentParser(IPUTrainingArguments)
    words = "--output_dir unused --fp32 --gradient_accumulation_steps 4 --n_ipu 8 --report_to none"
    (arguments,) = parser.parse_args_into_dataclasses(words.split())
    assert (arguments.fp32, arguments.gradient_accumulation_steps, arguments.n_ipu) == (True, 4, 8)
    assert parser.parse_args_into_dataclasses(["--output_dir", "unused"])[0].gradient_accumulation_steps is None
