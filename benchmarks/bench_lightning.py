"""Lightning's Trainer on emulated IPUs beside ``TrainStep`` at the same batching, and beside Lightning's own CPU run.

    pytest benchmarks/bench_lightning.py --benchmark-only -s
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch.utils.data import DataLoader, TensorDataset

import torchipu
from interleaved import interleave, print_table
from mnist_pipelined import PipelinedNetwork
from torchipu import poptorch

MICRO_BATCH, ACCUMULATION, ITERATIONS, CALLS = 40, 10, 10, 6
CALL = MICRO_BATCH * ACCUMULATION * ITERATIONS
MOST_OVER_TRAIN_STEP, LEAST_OVER_CPU = 1.10, 5.0

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", ".*(does not have many workers|LeafSpec).*")


class LightningCNN(L.LightningModule):
    """The demo's CNN as a Lightning module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = PipelinedNetwork()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        _, loss = self.net(*batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def digits() -> TensorDataset:
    """Return random images and labels for one epoch."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(CALL * CALLS, 1, 28, 28, generator=generator)
    return TensorDataset(x, torch.randint(10, (len(x),), generator=generator))


def options() -> poptorch.Options:
    """Return the options of the demo: pipelined, ten updates a call of ten micro-batches each."""
    opts = poptorch.Options()
    opts.deviceIterations(ITERATIONS)
    opts.Training.gradientAccumulation(ACCUMULATION)
    return opts


def epochs_of_trainer(accelerator: str, loader: Any, **kwargs: Any) -> Callable[[], object]:
    """Return a function that trains one more epoch.

    Args:
        accelerator: ``ipu`` or ``cpu``.
        loader: Of the training.
        **kwargs: Of the Trainer.
    """
    torch.manual_seed(0)
    model = LightningCNN()
    trainer = L.Trainer(
        accelerator=accelerator, devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **kwargs,
    )
    trainer.fit(model, loader)

    def epoch() -> None:
        assert trainer.fit_loop.max_epochs is not None
        trainer.fit_loop.max_epochs += 1
        trainer.fit(model, loader)

    return epoch


def epochs_of_step(loader: Any, join: int = 1) -> Callable[[], object]:
    """Return the same through ``TrainStep``, in the loop that a user would write.

    Args:
        loader: Of the training.
        join: Batches of the loader in one call.
    """
    torch.manual_seed(0)
    model = PipelinedNetwork()
    step = torchipu.TrainStep(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3),
        torchipu.Options(gradient_accumulation=ACCUMULATION, device_iterations=ITERATIONS, output_mode="all"),
    )

    def epoch() -> None:
        held: list[Any] = []
        for batch in loader:
            held.append(batch)
            if len(held) == join:
                x, y = held[0] if join == 1 else (torch.cat(column) for column in zip(*held, strict=True))
                _, loss = step(x, y)
                assert loss.isfinite().all()
                held = []

    return epoch


def measured(benchmark: BenchmarkFixture, title: str, contenders: dict[str, Callable[[], object]], rounds: int) -> Any:
    """Time in turns; print, and return the ratios of medians to the Trainer's."""
    timings = interleave(contenders, rounds=rounds)
    print()
    print_table(title, timings)
    ours = timings["torchipu"].median_s
    ratios = {name: timing.median_s / ours for name, timing in timings.items() if name != "torchipu"}
    benchmark.extra_info["median_s"] = {name: timing.median_s for name, timing in timings.items()}
    benchmark.pedantic(contenders["torchipu"], rounds=1, iterations=1)
    return ratios


@pytest.mark.parametrize("name", ["lightning-demo"])
def test_trainer_with_whole_calls(benchmark: BenchmarkFixture, name: str, rounds: int) -> None:
    """A ``poptorch.DataLoader`` gives the batches of a whole call; Lightning's CPU run is given the micro-batches."""
    from lightning.pytorch.strategies import IPUStrategy  # type: ignore[attr-defined]

    data, opts = digits(), options()
    whole = poptorch.DataLoader(opts, data, batch_size=MICRO_BATCH)
    contenders = {
        "torchipu": epochs_of_trainer("ipu", whole, strategy=IPUStrategy(training_opts=opts)),
        "TrainStep": epochs_of_step(whole),
        "Lightning on the CPU": epochs_of_trainer(
            "cpu", DataLoader(data, batch_size=MICRO_BATCH), accumulate_grad_batches=ACCUMULATION
        ),
    }
    benchmark.group = name
    ratios = measured(benchmark, f"the demo under Trainer, {CALL} images a call", contenders, rounds)
    assert 1 / ratios["TrainStep"] <= MOST_OVER_TRAIN_STEP
    assert ratios["Lightning on the CPU"] >= LEAST_OVER_CPU


@pytest.mark.parametrize("name", ["lightning-demo-plain-loader"])
def test_trainer_with_a_plain_loader(benchmark: BenchmarkFixture, name: str, rounds: int) -> None:
    """A plain loader of micro-batches: each is a batch of Lightning's, with its hooks, logs and progress."""
    from lightning.pytorch.strategies import IPUStrategy  # type: ignore[attr-defined]

    loader = DataLoader(digits(), batch_size=MICRO_BATCH)
    kwargs = {"accumulate_grad_batches": ACCUMULATION}
    contenders = {
        "torchipu": epochs_of_trainer(
            "ipu", loader, strategy=IPUStrategy(device_iterations=ITERATIONS), **kwargs
        ),
        "TrainStep": epochs_of_step(loader, ACCUMULATION * ITERATIONS),
        "Lightning on the CPU": epochs_of_trainer("cpu", loader, **kwargs),
    }
    benchmark.group = name
    measured(benchmark, f"the demo under Trainer, plain loader, {CALL} images a call", contenders, rounds)
