"""Runs one module under Lightning's own CPU accelerator, which is the judge, and on emulated IPUs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

LAST: torch.Tensor | None = None
"""What a step of another file may leave here."""
QUIET = {
    "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
}


def samples(count: int = 100, classes: int = 3) -> TensorDataset:
    """Return samples `[N, 8]` with labels `[N]`, the same each time."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 8, generator=generator)
    return TensorDataset(x, x[:, :classes].argmax(1))


def loader(count: int = 100, batch_size: int = 8, **kwargs: Any) -> DataLoader[Any]:
    return DataLoader(samples(count), batch_size=batch_size, **kwargs)


class Classifier(L.LightningModule):
    """Two linear layers, cross entropy, Adam."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.log("val_loss", self.loss(batch))
        self.log("val_acc", (self(x).argmax(1) == y).float().mean())

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Run:
    """A fit that has ended: Trainer, module and what was logged at every step."""

    def __init__(self, accelerator: str, make: Callable[[], Any], loaders: Callable[[], Any], **trainer: Any) -> None:
        L.seed_everything(1, verbose=False)
        self.module = make()
        self.logged: list[dict[str, float]] = []
        recorder = _Recorder(self.logged)
        callbacks = trainer.pop("callbacks", list)
        chosen: dict[str, Any] = {"devices": 1} if accelerator == "ipu" else {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            warnings.filterwarnings("ignore", ".*(LeafSpec|does not have many workers|`IterableDataset`).*")
            self.trainer = L.Trainer(
                accelerator=accelerator, callbacks=[*callbacks(), recorder], **{**QUIET, **chosen, **trainer},
            )
            given = loaders()
            self.trainer.fit(self.module, *(given if isinstance(given, tuple) else (given,)))

    @property
    def metrics(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.trainer.callback_metrics.items()}


class _Recorder(L.Callback):
    def __init__(self, logged: list[dict[str, float]]) -> None:
        self.logged = logged

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def assert_same(
    make: Callable[[], Any] = Classifier, loaders: Callable[[], Any] = lambda: (loader(shuffle=True), loader()), *,
    tolerance: float = 2e-5, ipu: dict[str, Any] | None = None, max_epochs: int = 2, **trainer: Any,
) -> tuple[Run, Run]:
    """Train on both; weights, metrics, steps and what was logged at each batch agree. Return the runs."""
    cpu = Run("cpu", make, loaders, max_epochs=max_epochs, **trainer)
    ours = Run("ipu", make, loaders, max_epochs=max_epochs, **{**trainer, **(ipu or {})})
    assert ours.trainer.global_step == cpu.trainer.global_step
    assert ours.trainer.current_epoch == cpu.trainer.current_epoch
    assert ours.metrics == pytest.approx(cpu.metrics, rel=1e-3, abs=tolerance)
    assert len(ours.logged) == len(cpu.logged)
    for one, other in zip(ours.logged, cpu.logged, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=tolerance)
    for name, value in cpu.module.state_dict().items():
        torch.testing.assert_close(ours.module.state_dict()[name], value, rtol=1e-4, atol=tolerance, msg=name)
    return cpu, ours


def programs(run: Run) -> int:
    """Return how many programs a run has compiled, all stages together."""
    return sum(len(stage.programs) for stage in set(run.trainer.strategy.poptorch_models.values()))


def each_package() -> Iterator[str]:
    yield from ("lightning.pytorch", "pytorch_lightning")
