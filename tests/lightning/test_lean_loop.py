"""The leaner loop over batches changes nothing that anybody sees; Lightning's own runs where somebody may."""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L
import pytest
import torch

from tests.lightning.runs import QUIET, Classifier, loader


class Noting(L.Callback):
    """Looks at the Trainer at the end of each epoch, and at whether the leaner loop is in force."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.is_lean: list[bool] = []

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        loop = trainer.fit_loop.epoch_loop
        self.is_lean.append("advance" in loop.__dict__)
        progress = loop.batch_progress.total
        self.seen.append((
            trainer.global_step, progress.ready, progress.started, progress.processed, progress.completed,
            loop._batches_that_stepped, trainer.optimizers[0].param_groups[0]["lr"],
            {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()},
        ))


class Logging(Classifier):
    """Logs in several ways, one of them now and then."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("largest", batch[0].max(), reduce_fx="max", on_epoch=True, on_step=False)
        self.log("weighted", loss, on_epoch=True, on_step=False, batch_size=batch_idx % 3 + 1)
        if batch_idx % 4 == 3:
            self.log("seldom", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(accelerator: str, make: type = Logging, callbacks: tuple[Any, ...] = (), **kwargs: Any) -> tuple[Any, Noting]:
    L.seed_everything(1, verbose=False)
    noting = Noting()
    chosen = {"devices": 1} if accelerator == "ipu" else {}
    module = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            accelerator=accelerator, callbacks=[noting, *callbacks], **{**QUIET, "max_epochs": 2, **chosen, **kwargs}
        )
        trainer.fit(module, loader(100), loader(16))
    assert "advance" not in trainer.fit_loop.epoch_loop.__dict__
    return module, noting


@pytest.mark.parametrize("kwargs", [
    {"accumulate_grad_batches": 4}, {"val_check_interval": 4, "accumulate_grad_batches": 3},
    {"max_steps": 5, "accumulate_grad_batches": 2},
], ids=str)
def test_nobody_sees_a_difference(kwargs: dict[str, Any]) -> None:
    one, theirs = fit("cpu", **kwargs)
    other, ours = fit("ipu", **kwargs)
    assert ours.is_lean
    assert all(ours.is_lean)
    assert len(ours.seen) == len(theirs.seen)
    for mine, cpu in zip(ours.seen, theirs.seen, strict=True):
        assert mine[:6] == cpu[:6]
        assert mine[6] == pytest.approx(cpu[6])
        assert mine[7] == pytest.approx(cpu[7], abs=2e-4)
    torch.testing.assert_close(other.net[0].weight, one.net[0].weight, rtol=1e-4, atol=2e-5)


def test_batches_are_shown_to_whoever_overrides_a_hook() -> None:
    class Watching(L.Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[int, float, float]] = []

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            metric = trainer.callback_metrics["loss_step"]
            self.seen.append((index, float(outputs["loss"]), float(metric)))

    watching = Watching(), Watching()
    fit("cpu", callbacks=(watching[0],), accumulate_grad_batches=4)
    _, noting = fit("ipu", callbacks=(watching[1],), accumulate_grad_batches=4)
    assert all(noting.is_lean)
    assert torch.tensor(watching[1].seen) == pytest.approx(torch.tensor(watching[0].seen), rel=1e-3)


def test_module_that_overrides_a_hook_of_batches_has_lightnings_loop() -> None:
    class Hooked(Logging):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 3 else None

    _, ours = fit("ipu", Hooked)
    _, theirs = fit("cpu", Hooked)
    assert not any(ours.is_lean)
    assert [seen[0] for seen in ours.seen] == [seen[0] for seen in theirs.seen] == [3, 6]


def test_log_of_the_user_is_called_for_every_batch() -> None:
    called: list[str] = []

    class WithLog(Logging):
        def log(self, name: str, *args: Any, **kwargs: Any) -> None:
            called.append(name)
            super().log(name, *args, **kwargs)

    fit("ipu", WithLog, max_epochs=1)
    assert called.count("loss") == 13
