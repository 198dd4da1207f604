"""Facts of the Trainer and of accelerate with the backend ``ipu``; the judge is the same without compilation."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import DynamoBackend, TorchDynamoPlugin

from tests.transformers import tiny
from torchipu.backend import COUNTS

IPU = {"torch_compile": True, "torch_compile_backend": "ipu"}


def make_trainer(folder: Path, model: Any, train: Any, evaluate: Any, **arguments: Any) -> transformers.Trainer:
    settings = transformers.TrainingArguments(
        str(folder), **{
            "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_train_epochs": 1,
            "logging_steps": 1, "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no",
            "learning_rate": 0.01, "log_level": "error", **arguments,
        },
    )
    return transformers.Trainer(
        model, settings, train_dataset=train, eval_dataset=evaluate, data_collator=tiny.padded,
        compute_metrics=lambda found: {"right": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )


def losses(trainer: transformers.Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def num_programs() -> int:
    return COUNTS.programs


def test_member_of_the_enumeration_is_like_the_others() -> None:
    member = DynamoBackend("IPU")
    assert member is DynamoBackend["IPU"] is DynamoBackend.IPU
    assert member in list(DynamoBackend)
    assert "IPU" in DynamoBackend
    assert str(member) == member.value == member.name == "IPU"
    assert pickle.loads(pickle.dumps(member)) is copy.deepcopy(member) is member
    assert DynamoBackend("INDUCTOR") is DynamoBackend.INDUCTOR
    with pytest.raises(ValueError, match="not a valid DynamoBackend"):
        DynamoBackend("IPV")


def test_trainer_of_ragged_batches_of_several_lengths_follows_eager(tmp_path: Path) -> None:
    train, evaluate = tiny.rows(10, 0, shortest=6, step=6), tiny.rows(6, 1)
    judge = make_trainer(tmp_path, tiny.bert(1), train, evaluate)
    judge.train()
    expected, predicted = judge.evaluate(), judge.predict(evaluate)

    trainer = make_trainer(tmp_path, tiny.bert(1), train, evaluate, **IPU)
    before = num_programs()
    trainer.train()
    trained = num_programs()
    found = trainer.evaluate()
    assert trained >= before + 2
    # Of its own accord the Trainer evaluates the uncompiled model after training.
    assert num_programs() > trained
    assert len(losses(trainer)) == 3
    torch.testing.assert_close(losses(trainer), losses(judge), atol=2e-5, rtol=2e-5)
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], abs=2e-5)
    assert found["eval_right"] == expected["eval_right"]
    torch.testing.assert_close(trainer.predict(evaluate).predictions, predicted.predictions, atol=5e-5, rtol=5e-5)


@pytest.mark.thorough  # the one above trains through the same door, and tests/transformers/test_trainer.py resumes
def test_gpt2_accumulates_clips_saves_and_resumes_as_in_eager(tmp_path: Path) -> None:
    train, evaluate = tiny.texts(20, 0), tiny.texts(4, 1)
    arguments = {
        "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 4,
        "max_grad_norm": 0.5, "lr_scheduler_type": "cosine", "per_device_train_batch_size": 2,
        "adam_epsilon": 1e-3,  # with less, the rounding of a gradient of zero becomes an update
    }
    judge = make_trainer(tmp_path / "eager", tiny.gpt2(1), train, evaluate, **arguments)
    judge.train()
    trainer = make_trainer(tmp_path / "ipu", tiny.gpt2(1), train, evaluate, **arguments, **IPU)
    trainer.train()
    torch.testing.assert_close(losses(trainer), losses(judge), atol=2e-5, rtol=2e-5)
    names = set(trainer.model.state_dict())
    assert names == set(judge.model.state_dict())  # no _orig_mod before them
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ipu" / "checkpoint-4")
    torch.testing.assert_close(dict(again.state_dict()), dict(trainer.model.state_dict()))

    resumed = make_trainer(tmp_path / "ipu", tiny.gpt2(1), train, evaluate, **arguments, **IPU)
    resumed.train(resume_from_checkpoint=str(tmp_path / "ipu" / "checkpoint-2"))
    torch.testing.assert_close(losses(resumed), losses(judge), atol=2e-5, rtol=2e-5)
    for name, value in resumed.model.state_dict().items():
        torch.testing.assert_close(value, judge.model.state_dict()[name], atol=5e-5, rtol=5e-5)


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.hidden, self.head = torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.head(self.hidden(values).relu()), labels)


@pytest.mark.parametrize("door", ["argument", "environment", "plugin"])
def test_accelerator_trains_as_eager_does(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, model = Classifier(), Classifier()
    if door == "environment":
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "ipu")
        accelerator = Accelerator(cpu=True)
    elif door == "argument":
        accelerator = Accelerator(cpu=True, dynamo_backend="ipu")
    else:
        plugin = TorchDynamoPlugin(backend="ipu", options={"host_threads": 1})
        accelerator = Accelerator(cpu=True, dynamo_plugin=plugin)
    optimiser, of_judge = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, judge))
    prepared, optimiser = accelerator.prepare(model, optimiser)
    assert prepared is model  # compiled in place: whoever holds the model runs what is compiled
    assert accelerator.unwrap_model(prepared) is model
    assert accelerator.state.dynamo_plugin.backend == "IPU"
    before = num_programs()
    for size in (4, 4, 3):
        batch = torch.randn(size, 5), torch.arange(size) % 3
        loss, expected = prepared(*batch), judge(*batch)
        torch.testing.assert_close(loss, expected)
        accelerator.backward(loss)
        expected.backward()
        for one in (optimiser, of_judge):
            one.step()
            one.zero_grad()
    assert num_programs() == before + 4  # forward and backward, and for the other size again


def test_modules_of_torch_are_compiled_too() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
    values = torch.randn(2, 3)
    expected = model(values)
    before = num_programs()
    prepared = Accelerator(cpu=True, dynamo_backend="ipu").prepare(model)
    torch.testing.assert_close(prepared(values), expected)
    assert num_programs() == before + 1


def test_other_backends_are_prepared_as_before() -> None:
    model = tiny.bert(1)
    assert type(Accelerator(cpu=True, dynamo_backend="eager").prepare(model)).__name__ == "OptimizedModule"


def test_regional_compilation_is_left_to_accelerate() -> None:
    plugin = TorchDynamoPlugin(backend="ipu", use_regional_compilation=True)
    model, batch = tiny.bert(2), tiny.padded(tiny.rows(4, 0))
    expected = model(**batch).loss
    before = num_programs()
    prepared = Accelerator(cpu=True, dynamo_plugin=plugin).prepare(model)
    torch.testing.assert_close(prepared(**batch).loss, expected)
    assert num_programs() > before


def test_launcher_offers_the_backend() -> None:
    code = "from accelerate.commands.launch import launch_command_parser as p; p().print_help()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ipu" in done.stdout.partition("--dynamo_backend {")[2].partition("}")[0].split(",")


@pytest.mark.parametrize("asks_before", [False, True])
def test_what_layers_give_is_recorded_in_one_graph_from_the_first_call_on(asks_before: bool) -> None:
    model = tiny.bert(2).eval()
    exact = copy.deepcopy(model).double()
    words = torch.tensor([row["input_ids"] for row in tiny.rows(3, 0)])
    if asks_before:
        copy.deepcopy(model)(words, output_hidden_states=True)
        model(words, output_hidden_states=True)
    torch._dynamo.reset()
    run = torch.compile(model, backend="ipu", fullgraph=True)
    for asked in (True, False, True):
        with torch.no_grad():
            found, expected = (one(words, output_hidden_states=asked) for one in (run, exact))
        torch.testing.assert_close(found.logits.double(), expected.logits, rtol=1e-4, atol=1e-4)
        assert (found.hidden_states is None) is (expected.hidden_states is None) is not asked
        for one, other in zip(found.hidden_states or (), expected.hidden_states or (), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
