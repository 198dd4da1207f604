"""Callbacks, checkpoints and loggers see the weights and metrics that they see on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    Timer,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger

from tests.lightning.runs import QUIET, Classifier, Run, assert_same, loader
from tests.lightning.test_steps import even


def test_early_stopping_stops_in_the_same_epoch() -> None:
    def stopping() -> list[Any]:
        return [EarlyStopping("val_loss", patience=1, min_delta=0.05)]

    cpu, _ = assert_same(loaders=even, callbacks=stopping, max_epochs=12)
    assert cpu.trainer.current_epoch < 12


def test_checkpoints_are_those_of_the_cpu_and_training_goes_on_from_them(tmp_path: Path) -> None:
    def kept(who: str) -> Any:
        return lambda: [ModelCheckpoint(tmp_path / who, monitor="val_loss", save_top_k=1, every_n_train_steps=2,
                                        filename="best", save_last=True)]

    def fit(who: str, epochs: int, **kwargs: Any) -> Run:
        return Run(who, Classifier, even, callbacks=kept(who), enable_checkpointing=True, max_epochs=epochs,
                   accumulate_grad_batches=2, val_check_interval=4, **kwargs)

    cpu, ours = fit("cpu", 2), fit("ipu", 2)
    for name in ("best.ckpt", "last.ckpt"):
        theirs, saved = (torch.load(tmp_path / who / name, weights_only=False) for who in ("cpu", "ipu"))
        assert saved["global_step"] == theirs["global_step"]
        for key, value in theirs["state_dict"].items():
            torch.testing.assert_close(saved["state_dict"][key], value, rtol=1e-4, atol=1e-5)
        moments = [one["optimizer_states"][0]["state"][0]["exp_avg"] for one in (saved, theirs)]
        torch.testing.assert_close(*moments, rtol=1e-3, atol=1e-6)
    assert ours.trainer.global_step == cpu.trainer.global_step

    L.seed_everything(2, verbose=False)
    trainers = [L.Trainer(accelerator=who, max_epochs=4, accumulate_grad_batches=2, **QUIET,
                          **({"devices": 1} if who == "ipu" else {})) for who in ("cpu", "ipu")]
    modules = [Classifier(), Classifier()]
    for trainer, module in zip(trainers, modules, strict=True):
        trainer.fit(module, loader(48), loader(32), ckpt_path=tmp_path / "ipu" / "last.ckpt", weights_only=False)
    torch.testing.assert_close(modules[1].net[0].weight, modules[0].net[0].weight, rtol=1e-4, atol=1e-5)


def test_loggers_and_monitors_write_the_same_rows(tmp_path: Path) -> None:
    class Scheduled(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return {"optimizer": optimizer, "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9), "interval": "step",
            }}

    rows = {}
    for who in ("cpu", "ipu"):
        run = Run(who, Scheduled, even, max_epochs=2, logger=CSVLogger(tmp_path, name=who, version=0),
                  log_every_n_steps=2, callbacks=lambda: [LearningRateMonitor("step"), Timer()])
        rows[who] = (Path(run.trainer.logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert rows["ipu"][0] == rows["cpu"][0]
    for ours, theirs in zip(rows["ipu"][1:], rows["cpu"][1:], strict=True):
        for one, other in zip(ours.split(","), theirs.split(","), strict=True):
            assert (one == other) or float(one) == pytest.approx(float(other), rel=1e-3)


def test_averages_of_weights_and_monitors_of_devices(tmp_path: Path) -> None:
    assert_same(
        loaders=even, accumulate_grad_batches=2, callbacks=lambda: [WeightAveraging(use_buffers=True)], max_epochs=2,
    )
    Run("ipu", Classifier, even, max_epochs=1, logger=CSVLogger(tmp_path), callbacks=lambda: [DeviceStatsMonitor()],
        enable_progress_bar=True, enable_model_summary=True, profiler="simple")


def test_module_is_plain_again_after_training() -> None:
    import copy
    import pickle

    ours = Run("ipu", Classifier, even, max_epochs=1)
    assert type(ours.module) is Classifier
    assert "log" not in vars(ours.module)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(ours.module.net)))
    assert torch.equal(twin[0].weight, ours.module.net[0].weight)
    assert all(type(parameter) is torch.nn.Parameter for parameter in ours.module.parameters())


def test_exception_in_a_hook_leaves_a_trainer_that_trains_on() -> None:
    class Failing(Classifier):
        fails = True

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.fails and batch_idx == 1:
                raise ValueError("in a hook")

    L.seed_everything(1, verbose=False)
    trainer = L.Trainer(accelerator="ipu", devices=1, max_epochs=1, accumulate_grad_batches=4, **QUIET)
    module = Failing()
    with pytest.raises(ValueError, match="in a hook"):
        trainer.fit(module, loader(64))
    module.fails = False
    trainer.fit(module, loader(64))
    assert trainer.global_step > 0
