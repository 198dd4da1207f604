"""Training with unmodified modules is what it is on the CPU: weights, logs, steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from tests.lightning.runs import Classifier, Run, assert_same, loader, programs, samples


def test_fit_is_that_of_the_cpu() -> None:
    _, ours = assert_same()
    assert programs(ours) == 4  # training and validation, each with the ragged last batch


@pytest.mark.parametrize("accumulate", [2, 3, 4])
def test_accumulation_with_a_ragged_and_incomplete_last_group(accumulate: int) -> None:
    assert_same(accumulate_grad_batches=accumulate)


@pytest.mark.parametrize("iterations", [2, 5])
def test_device_iterations_change_nothing_but_the_calls(iterations: int) -> None:
    from lightning.pytorch.strategies import IPUStrategy

    _, ours = assert_same(ipu={"strategy": IPUStrategy(device_iterations=iterations)}, accumulate_grad_batches=2)
    stage = next(iter(ours.trainer.strategy.poptorch_models.values()))
    assert stage._options.toDict()["device_iterations"] == iterations


class _WithSGD(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


def test_loss_of_an_incomplete_group_is_divided_as_on_the_cpu() -> None:
    assert_same(_WithSGD, lambda: loader(88), accumulate_grad_batches=4)


class _Scheduled(Classifier):
    interval = "epoch"

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.interval == "plateau":
            scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_acc"}}
        if self.interval == "epoch":
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class _ScheduledByStep(_Scheduled):
    interval = "step"


class _ScheduledByPlateau(_Scheduled):
    interval = "plateau"


@pytest.mark.parametrize("make", [_Scheduled, _ScheduledByStep, _ScheduledByPlateau])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_learning_rates_follow_their_schedulers(make: type, accumulate: int) -> None:
    cpu, ours = assert_same(make, max_epochs=3, accumulate_grad_batches=accumulate)
    rates = [run.trainer.optimizers[0].param_groups[0]["lr"] for run in (cpu, ours)]
    assert rates[0] == rates[1]


def test_warm_up_in_optimizer_step_works() -> None:
    class WarmUp(Classifier):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            optimizer.step(closure=optimizer_closure)
            for group in optimizer.param_groups:
                group["lr"] = min(1.0, (self.trainer.global_step + 1) / 10) * 1e-2

    assert_same(WarmUp)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_gradients_are_clipped_in_the_program(algorithm: str, accumulate: int) -> None:
    kwargs = {"gradient_clip_val": 0.02, "gradient_clip_algorithm": algorithm, "accumulate_grad_batches": accumulate}
    cpu, _ = assert_same(_WithSGD, **kwargs)
    free = Run("cpu", _WithSGD, lambda: (loader(shuffle=True), loader()), max_epochs=2)
    assert not torch.allclose(free.module.net[0].weight, cpu.module.net[0].weight, atol=1e-2)


class _Normalised(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def test_running_statistics_are_those_of_the_cpu() -> None:
    assert_same(_Normalised, accumulate_grad_batches=2)


def test_replicas_train_as_one_batch_of_their_size() -> None:
    cpu = Run("cpu", Classifier, lambda: loader(batch_size=16), max_epochs=2)
    ours = Run("ipu", Classifier, lambda: loader(batch_size=8), max_epochs=2, devices=2)
    assert ours.trainer.global_step == cpu.trainer.global_step
    assert ours.metrics == pytest.approx(cpu.metrics, rel=1e-4)
    assert ours.trainer.strategy.poptorch_models["train"].programs[0].options.replicas == 2
    torch.testing.assert_close(ours.module.net[0].weight, cpu.module.net[0].weight, rtol=1e-4, atol=1e-5)


def test_eight_replicas_with_accumulation_and_what_is_left_over() -> None:
    cpu = Run("cpu", _WithSGD, lambda: loader(batch_size=32), max_epochs=2, accumulate_grad_batches=3)
    ours = Run("ipu", _WithSGD, lambda: loader(batch_size=4), max_epochs=2, devices=8, accumulate_grad_batches=3)
    assert ours.trainer.global_step == cpu.trainer.global_step
    assert ours.metrics == pytest.approx(cpu.metrics, rel=1e-4)
    torch.testing.assert_close(ours.module.net[0].weight, cpu.module.net[0].weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kwargs", [
    {"limit_train_batches": 5, "limit_val_batches": 2}, {"max_steps": 7, "accumulate_grad_batches": 3, "max_epochs": 9},
    {"fast_dev_run": True}, {"overfit_batches": 3}, {"val_check_interval": 4, "accumulate_grad_batches": 2},
    {"val_check_interval": 0.5}, {"num_sanity_val_steps": 1}, {"barebones": True, "max_epochs": 1},
    {"reload_dataloaders_every_n_epochs": 1}, {"check_val_every_n_epoch": 2},
], ids=str)
def test_limits_of_the_trainer_hold(kwargs: dict[str, Any]) -> None:
    if "barebones" in kwargs:
        kwargs = {**kwargs, "logger": None, "enable_checkpointing": None, "enable_progress_bar": None,
                  "enable_model_summary": None}
        cpu, ours = (Run(who, Classifier, lambda: loader(), **kwargs) for who in ("cpu", "ipu"))
        torch.testing.assert_close(ours.module.net[0].weight, cpu.module.net[0].weight, rtol=1e-4, atol=1e-5)
    else:
        assert_same(**kwargs)


def test_accumulation_scheduler_changes_the_groups() -> None:
    assert_same(callbacks=lambda: [GradientAccumulationScheduler({0: 2, 1: 3, 2: 1})], max_epochs=3)


@pytest.mark.parametrize("make", [Classifier, _Normalised])
def test_stochastic_weight_averaging(make: type) -> None:
    assert_same(make, callbacks=lambda: [StochasticWeightAveraging(1e-2, swa_epoch_start=1)], max_epochs=4)


class _Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from list(samples(50))


def test_loader_without_a_length() -> None:
    assert_same(loaders=lambda: DataLoader(_Endless(), batch_size=8), accumulate_grad_batches=4)


def test_dicts_of_loaders_and_of_tensors() -> None:
    class OfTwo(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch["a"]) + 0.5 * self.loss(batch["b"])
            self.log("loss", loss)
            return {"loss": loss, "extra": loss.detach() * 2}

    assert_same(OfTwo, lambda: {"a": loader(40, shuffle=True), "b": loader(64, 4)}, accumulate_grad_batches=2)


def test_step_without_the_index_of_the_batch() -> None:
    class Short(Classifier):
        def training_step(self, batch: Any) -> Any:  # type: ignore[override]
            return self.loss(batch)

    assert_same(Short, accumulate_grad_batches=2)


def test_outputs_of_a_step_reach_the_hooks() -> None:
    seen: dict[str, list[Any]] = {"cpu": [], "ipu": []}

    class Seen(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            return {"loss": loss, "half": loss.detach() / 2, "index": batch_idx, "text": "a"}

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            name = "ipu" if type(self.trainer.accelerator).__name__ == "IPUAccelerator" else "cpu"
            seen[name].append((float(outputs["loss"]), float(outputs["half"]), outputs["index"], outputs["text"]))

    assert_same(Seen, accumulate_grad_batches=3)
    for ours, theirs in zip(seen["ipu"], seen["cpu"], strict=True):
        assert ours[:2] == pytest.approx(theirs[:2], rel=1e-4)
        assert ours[2:] == theirs[2:]


def test_module_without_optimizer_runs_forward() -> None:
    class Still(Classifier):
        def configure_optimizers(self) -> Any:
            return None

    cpu, ours = assert_same(Still)
    assert torch.equal(cpu.module.net[0].weight, ours.module.net[0].weight)


def test_second_fit_has_an_optimizer_of_its_own_and_the_same_programs() -> None:
    runs = [Run(who, Classifier, lambda: loader(96), max_epochs=1) for who in ("cpu", "ipu")]
    program = runs[1].trainer.strategy.poptorch_models["train"].programs[0]
    for run in runs:
        run.trainer.fit_loop.max_epochs = 2
        run.trainer.fit(run.module, loader(96))
    assert runs[1].trainer.strategy.poptorch_models["train"].programs == (program,)
    torch.testing.assert_close(runs[1].module.net[0].weight, runs[0].module.net[0].weight, rtol=1e-4, atol=1e-5)
    state = runs[1].trainer.optimizers[0].state[runs[1].module.net[0].weight]
    assert float(state["step"]) == 12  # those of the second fit


def test_epoch_that_ends_early_leaves_no_results_behind() -> None:
    class Early(Classifier):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 5 else None

    assert_same(Early, accumulate_grad_batches=1)
    run = Run("ipu", Early, lambda: loader(), max_epochs=3, accumulate_grad_batches=4)
    assert run.trainer.current_epoch == 3


def test_transfer_hooks_are_called() -> None:
    class Scaled(Classifier):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch[0] * 2, batch[1]

        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch[0] + 1, batch[1]

    assert_same(Scaled, accumulate_grad_batches=3)


def test_error_of_a_step_keeps_its_type_and_text() -> None:
    class Broken(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise KeyError("there is no such thing")

    with pytest.raises(KeyError, match="there is no such thing"):
        Run("ipu", Broken, lambda: loader(), max_epochs=1)


def test_step_that_looks_at_values_names_itself_and_the_line() -> None:
    class Looking(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            if loss > 1:
                return loss
            return loss * 2

    with pytest.raises(Exception, match=r"Looking.training_step at .*test_fit.py:\d+ looks at values of tensors"):
        Run("ipu", Looking, lambda: loader(), max_epochs=1)


def test_frozen_parts_and_batch_norm_in_eval_are_captured_again() -> None:
    class Finetuned(_Normalised):
        def on_train_epoch_start(self) -> None:
            self.net[0].requires_grad_(self.current_epoch > 0)
            if self.current_epoch == 2:
                self.net[1].eval()

    assert_same(Finetuned, max_epochs=3)


def test_detect_anomaly_and_dropout_run() -> None:
    class Dropped(Classifier):
        def loss(self, batch: Any) -> torch.Tensor:
            return F.cross_entropy(self(F.dropout(batch[0], 0.5, self.training)), batch[1])

    first, second = (Run("ipu", Dropped, lambda: loader(), max_epochs=1, detect_anomaly=True) for _ in range(2))
    assert torch.equal(first.module.net[0].weight, second.module.net[0].weight)
