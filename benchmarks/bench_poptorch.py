"""What PopTorch's interface costs: a step beside the same ``TrainStep``, and the wait for its asynchronous loader.

    pytest benchmarks/bench_poptorch.py --benchmark-only -s
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn

import torchipu
from interleaved import interleave, print_table, speed_ups
from torchipu import poptorch
from workloads import DemoNet

BATCH, ACCUMULATION, ITERATIONS = 40, 10, 10
IMAGES = BATCH * ACCUMULATION * ITERATIONS


class Trained(nn.Module):
    """The demo's CNN, as programs of PopTorch write it: the loss is returned beside the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.model = DemoNet()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(x)
        return logits, F.cross_entropy(logits, labels)


def made() -> tuple[Trained, torch.optim.Optimizer]:
    """Return a model and its optimiser, with the same weights each time."""
    torch.manual_seed(0)
    model = Trained()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def through_poptorch() -> tuple[poptorch.Options, Callable[..., object]]:
    """Return the options and a training model."""
    model, optimiser = made()
    options = poptorch.Options()
    options.deviceIterations(ITERATIONS)
    options.Training.gradientAccumulation(ACCUMULATION)
    return options, poptorch.trainingModel(model, options, optimiser)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images `[N, 1, 28, 28]` and labels `[N]`."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(IMAGES, 1, 28, 28, generator=generator), torch.randint(10, (IMAGES,), generator=generator)


def test_cost_of_the_interface(benchmark: BenchmarkFixture, num_threads: int, rounds: int) -> None:
    """Training at batch 40, accumulation 10, 10 device iterations."""
    x, labels = images()
    model, optimiser = made()
    settings = torchipu.Options(
        device_iterations=ITERATIONS, gradient_accumulation=ACCUMULATION, host_threads=num_threads,
    )
    step = torchipu.TrainStep(model, optimiser, options=settings)
    _, trainer = through_poptorch()
    timings = interleave({"TrainStep": lambda: step(x, labels), "poptorch": lambda: trainer(x, labels)}, rounds=rounds)
    print()
    print_table(f"training model of PopTorch beside TrainStep, {num_threads} threads", timings, of="poptorch")
    benchmark.extra_info["poptorch_faster_by"] = speed_ups(timings, of="poptorch")
    benchmark.group = "poptorch"
    benchmark.pedantic(trainer, args=(x, labels), rounds=5, iterations=1)


@pytest.mark.parametrize(
    "mode", [poptorch.DataLoaderMode.Sync, poptorch.DataLoaderMode.Async], ids=lambda mode: mode.name
)
def test_wait_for_the_loader(
    benchmark: BenchmarkFixture, mode: poptorch.DataLoaderMode, rounds: int
) -> None:
    """The share of an epoch of ten steps that passes before a batch is there."""
    options, trainer = through_poptorch()
    x, labels = (value.repeat(10, *(1 for _ in value.shape[1:])) for value in images())
    dataset = torch.utils.data.TensorDataset(x, labels)
    loader = poptorch.DataLoader(options, dataset, batch_size=BATCH, shuffle=True, num_workers=0, mode=mode)

    def epoch() -> tuple[float, float]:
        waited, began = 0.0, time.perf_counter()
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                return waited, time.perf_counter() - began
            trainer(*batch)

    epoch()  # compiles, starts the worker
    shares = [waited / total for waited, total in (epoch() for _ in range(min(rounds, 5)))]
    print(f"\n{mode.name}: {statistics.median(shares):.1%} of an epoch is spent waiting for the loader")
    benchmark.extra_info["waiting"] = statistics.median(shares)
    benchmark.group = "poptorch, an epoch"
    benchmark.pedantic(epoch, rounds=1, iterations=1)
    if hasattr(loader, "terminate"):
        loader.terminate()
