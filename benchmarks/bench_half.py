"""Training in half with stochastic rounding beside the same program in float32, and beside eager PyTorch in half.

    pytest benchmarks/bench_half.py --benchmark-only -s
    pytest benchmarks/bench_half.py --benchmark-only -s --workload bert-small-train --threads 1 --cpu-time
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from bench_step import measure
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn

import torchipu
from workloads import WORKLOADS, Step, Workload

# eps of a half optimiser must be a half: eager computes the update in it.
RATE, EPS = 1e-4, 1e-4
MOST_ROUNDS = 3  # a step of eager convolutions in half takes many seconds


@dataclass(frozen=True)
class Run:
    """What is measured of a workload.

    Attributes:
        updates: Weight updates in a call.
        float_ratio: What the half run may cost, as a multiple of the float run.
        eager_ratio: By how much it is to be faster than eager half.
    """

    updates: int
    float_ratio: float
    eager_ratio: float


RUNS = {
    "demo-cnn-train": Run(20, 1.5, 5.0),
    "resnet18-train": Run(1, 1.5, 15.0),
    "bert-small-train": Run(1, 1.5, 15.0),
}


class Trained(nn.Module):
    """A workload's model with its loss, in the type of its weights; the loss itself is computed in float."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.model = workload.model()
        self.loss = workload.loss

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output = self.model(inputs)
        return self.loss(output.float() if isinstance(output, torch.Tensor) else output, inputs)


def _inputs(workload: Workload, dtype: torch.dtype, updates: int) -> torch.Tensor:
    inputs = workload.inputs()
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    return inputs.repeat(updates, *(1 for _ in inputs.shape[1:]))


def _made(workload: Workload, dtype: torch.dtype) -> tuple[Trained, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Trained(workload).to(dtype).train()
    return model, torch.optim.AdamW(model.parameters(), lr=RATE, eps=EPS)


def program_step(workload: Workload, dtype: torch.dtype, updates: int, threads: int) -> Step:
    """Return training as one program; halves are rounded stochastically."""
    model, optimiser = _made(workload, dtype)
    options = torchipu.Options(
        device_iterations=updates, host_threads=threads, allow_out_of_memory=True, seed=1,
        stochastic_rounding=dtype is torch.half,
    )
    step, inputs = torchipu.TrainStep(model, optimiser, options), _inputs(workload, dtype, updates)
    return lambda: step(inputs)


def eager_step(workload: Workload, dtype: torch.dtype, updates: int) -> Step:
    """Return the same training in eager PyTorch."""
    model, optimiser = _made(workload, dtype)
    batches: Sequence[torch.Tensor] = _inputs(workload, dtype, updates).chunk(updates)

    def run() -> None:
        for batch in batches:
            optimiser.zero_grad(set_to_none=True)
            model(batch).backward()
            optimiser.step()

    return run


@pytest.mark.parametrize("name", list(RUNS))
@pytest.mark.usefixtures("chosen")
def test_training_in_half(
    benchmark: BenchmarkFixture, name: str, num_threads: int, rounds: int, clock: Callable[[], float]
) -> None:
    """Forward, loss, backward and AdamW as one program in half, in float, and eagerly in half."""
    workload, run = WORKLOADS[name], RUNS[name]
    steps: dict[str, Step] = {
        "torchipu": program_step(workload, torch.half, run.updates, num_threads),
        "torchipu, float": program_step(workload, torch.float, run.updates, num_threads),
        "eager, half": eager_step(workload, torch.half, run.updates),
    }
    benchmark.group = "training in half"
    title = f"{name} in half, AdamW, {num_threads} threads"
    measure(benchmark, title, steps, min(rounds, MOST_ROUNDS), run.updates, clock=clock)
    benchmark.extra_info["wanted"] = {"torchipu, float": 1 / run.float_ratio, "eager, half": run.eager_ratio}
