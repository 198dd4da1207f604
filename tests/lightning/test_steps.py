"""What a step does beside computing is done for every micro-batch: logs, metrics, attributes, Python numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchmetrics

from tests.lightning.runs import Classifier, Run, assert_same, loader, programs


def even() -> Any:
    """Return loaders without a ragged batch."""
    return loader(48, shuffle=True), loader(32)


class _Logging(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("step", loss)
        self.log("both", loss * 2, on_step=True, on_epoch=True, prog_bar=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("total", loss, on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("smallest", loss, on_step=False, on_epoch=True, reduce_fx=torch.min)
        self.log_dict({"a": loss + 1, "b": loss.detach() - 1})
        self.log("index", batch_idx, on_step=True, on_epoch=True)
        self.log("steps", self.global_step * 1.0, on_epoch=True)
        return loss

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.log("before", float(batch_idx))

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.training_step(batch, batch_idx)


def test_everything_that_is_logged_is_logged_at_every_batch() -> None:
    cpu, ours = assert_same(_Logging, even, accumulate_grad_batches=2)
    assert cpu.metrics["index"] > 1  # not that of the first batch
    assert programs(ours) == 2


class _Measured(Classifier):
    def __init__(self) -> None:
        super().__init__()
        kwargs: Any = {"task": "multiclass", "num_classes": 3}
        self.acc = torchmetrics.Accuracy(**kwargs)
        self.collection = torchmetrics.MetricCollection(
            {"f1": torchmetrics.F1Score(**kwargs), "auroc": torchmetrics.AUROC(**kwargs)}, prefix="val_",
        )
        self.mean = torchmetrics.MeanMetric()
        self.matrices: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("err", 1 - self.acc(self(batch[0]), batch[1]), on_step=True, on_epoch=True)
        self.mean.update(loss.detach())
        self.log("mean", self.mean)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.collection.update(self(batch[0]), batch[1])
        self.log_dict(self.collection)

    def on_train_epoch_end(self) -> None:
        self.acc.reset()


def test_torchmetrics_see_real_values() -> None:
    assert_same(_Measured, even, accumulate_grad_batches=2)


def test_value_of_a_metric_is_no_python_value_within_the_step() -> None:
    class Deciding(_Measured):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            return loss * 2 if self.acc(self(batch[0]), batch[1]) > 0.5 else loss

    with pytest.raises(Exception, match="needs the value of MulticlassAccuracy as a Python value"):
        Run("ipu", Deciding, lambda: loader(16), max_epochs=1)


class _Collecting(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = []
        self.by_stage: dict[str, list[Any]] = {"val": []}
        self.last: Any = None
        self.seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.last = loss.detach()
        self.seen += len(batch[1])
        self.log("seen", self.seen * 1.0)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self(batch[0])
        self.outputs.append({"logits": logits, "index": batch_idx})
        self.by_stage["val"].append(F.cross_entropy(logits, batch[1]))
        return logits

    def on_validation_epoch_end(self) -> None:
        self.log("spread", torch.cat([one["logits"] for one in self.outputs]).std())
        self.log("indices", float(sum(one["index"] for one in self.outputs)))
        self.log("mean_loss", torch.stack(self.by_stage["val"]).mean())
        self.outputs.clear()
        self.by_stage["val"] = []


def test_attributes_that_a_step_writes_are_written_for_each_batch() -> None:
    cpu, ours = assert_same(_Collecting, even, accumulate_grad_batches=2)
    assert ours.module.seen == cpu.module.seen == 96
    assert float(ours.module.last) == pytest.approx(float(cpu.module.last), rel=1e-4)


class _Annealed(Classifier):
    """Python values in the loss: what changes each step is an input, what decides is a guard."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = 1.0

    def on_train_epoch_start(self) -> None:
        self.strength = 1.0 / (1 + self.current_epoch)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        beta = min(1.0, self.global_step / 8)
        loss = loss + beta * self.net[0].weight.square().sum() * self.strength
        if batch_idx % 3 == 2:
            loss = loss * 1.5
            self.log("rare", loss)
        if self.current_epoch == 1:
            loss = loss * 0.5
        self.log("beta", beta)
        return loss


def test_step_that_branches_on_python_values_is_captured_again() -> None:
    _, ours = assert_same(_Annealed, lambda: loader(48))
    # Rare or not, warm-up over or not, and a strength and a branch for each epoch; not one for each step.
    assert programs(ours) <= 8


def test_branches_within_an_update_are_programs_that_hand_gradients_on() -> None:
    assert_same(_Annealed, lambda: loader(48), accumulate_grad_batches=3)


def test_learning_rate_that_a_step_logs_is_that_of_the_moment() -> None:
    class Rates(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("lr", self.optimizers().param_groups[0]["lr"])
            self.log("epoch", self.trainer.current_epoch * 1.0)
            return self.loss(batch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    _, ours = assert_same(Rates, lambda: loader(32))
    assert programs(ours) == 1  # captured again, and found to be the same program


def test_validation_step_that_calls_training_step_and_two_loaders() -> None:
    class Both(Classifier):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            loss = self.loss(batch)
            self.log(f"val_{dataloader_idx}", loss, add_dataloader_idx=False)
            return loss

    assert_same(Both, lambda: (loader(32), [loader(32), loader(16)]))


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_evaluation_is_that_of_the_cpu_whatever_a_call_takes(devices: int) -> None:
    from lightning.pytorch.strategies import IPUStrategy

    cpu = Run("cpu", _Collecting, lambda: loader(16), max_epochs=1)
    ours = Run("ipu", _Collecting, lambda: loader(16), max_epochs=0, devices=devices,
               strategy=IPUStrategy(device_iterations=3))
    ours.module.load_state_dict(cpu.module.state_dict())
    expected, found = (run.trainer.validate(run.module, loader(100), verbose=False) for run in (cpu, ours))
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    expected, found = (run.trainer.predict(run.module, loader(100)) for run in (cpu, ours))
    assert len(found) == len(expected) == 13
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class _Averaging(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.average = self.average * 0.5 + loss.detach()
        self.log("average", self.average)
        return loss * (1 + self.average)


def test_a_buffer_that_is_given_another_tensor_is_a_state() -> None:
    cpu, ours = assert_same(_Averaging, even)
    assert cpu.metrics["average"] > 0
    assert programs(ours) == 2  # one of them of validation


class _Remembering(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.average = torch.zeros(())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.average = self.average * 0.5 + loss.detach()
        return loss * (1 + self.average)


def test_a_tensor_that_is_no_buffer_and_is_given_another_value_is_told_of() -> None:
    words = r"training_step gives average of _Remembering another tensor: it is no buffer"
    with pytest.warns(UserWarning, match=words):
        Run("ipu", _Remembering, even, max_epochs=1)

