"""Half with stochastic rounding beside the same program in float32: training, and inference with frozen weights.

Small workloads are trained beside eager PyTorch in half too, a step of which takes many seconds for the others.

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
MOST_ROUNDS = 3  # beside eager convolutions in half
AS_FAST = 1.05
"""What half may cost where arithmetic decides, as a multiple of float."""
LESS_MEMORY = 0.8
"""Likewise where reading and writing decides."""


@dataclass(frozen=True)
class Run:
    """What is measured of a workload.

    Attributes:
        updates: Weight updates in a call; for inference calls of the model.
        float_ratio: What the half run may cost, as a multiple of the float run.
        eager_ratio: By how much it is to be faster than eager half; None where that is not measured.
    """

    updates: int = 1
    float_ratio: float = AS_FAST
    eager_ratio: float | None = None


MODELS = (
    "resnet18", "resnet18-224", "resnet50", "mobilenetv3-large", "convnext-tiny", "vit-tiny", "bert-small", "bert-base",
    "gpt2-small", "lstm",
)
TRAINED = {
    "demo-cnn-train": Run(updates=20, eager_ratio=5.0),
    # Four rows: weights are read, and updated, for little arithmetic.
    "mlp-4-train": Run(updates=20, float_ratio=LESS_MEMORY, eager_ratio=2.0),
    **{f"{model}-train": Run() for model in MODELS},
    "resnet18-train": Run(eager_ratio=15.0),
    "bert-small-train": Run(eager_ratio=15.0),
}
INFERRED = {f"{model}-frozen": Run() for model in MODELS}


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


def inference_step(workload: Workload, dtype: torch.dtype, threads: int) -> Step:
    """Return inference with weights that are prepared once, as one program; halves are rounded stochastically."""
    torch.manual_seed(0)
    model = workload.model().to(dtype).eval().requires_grad_(False)
    options = torchipu.Options(
        host_threads=threads, allow_out_of_memory=True, seed=1, frozen_weights=True,
        stochastic_rounding=dtype is torch.half,
    )
    step, inputs = torchipu.InferenceStep(model, options), _inputs(workload, dtype, 1)
    return lambda: step(inputs)


def _wanted(run: Run) -> dict[str, float]:
    """Return by how much half is to be faster than each other."""
    beside_eager = {} if run.eager_ratio is None else {"eager, half": run.eager_ratio}
    return {"torchipu, float": 1 / run.float_ratio, **beside_eager}


@pytest.mark.parametrize("name", list(TRAINED))
@pytest.mark.usefixtures("chosen")
def test_training_in_half(
    benchmark: BenchmarkFixture, name: str, num_threads: int, rounds: int, clock: Callable[[], float]
) -> None:
    """Forward, loss, backward and AdamW as one program in half and in float, and eagerly in half."""
    workload, run = WORKLOADS[name], TRAINED[name]
    steps: dict[str, Step] = {
        "torchipu": program_step(workload, torch.half, run.updates, num_threads),
        "torchipu, float": program_step(workload, torch.float, run.updates, num_threads),
    }
    if run.eager_ratio is not None:
        steps["eager, half"] = eager_step(workload, torch.half, run.updates)
        rounds = min(rounds, MOST_ROUNDS)
    benchmark.group = "training in half"
    title = f"{name} in half, AdamW, {num_threads} threads"
    measure(benchmark, title, steps, rounds, run.updates, clock=clock)
    benchmark.extra_info["wanted"] = _wanted(run)


@pytest.mark.parametrize("name", list(INFERRED))
@pytest.mark.usefixtures("chosen")
def test_inference_in_half(
    benchmark: BenchmarkFixture, name: str, num_threads: int, rounds: int, clock: Callable[[], float]
) -> None:
    """A model with frozen weights as one program in half and in float."""
    workload, run = WORKLOADS[name], INFERRED[name]
    steps: dict[str, Step] = {
        "torchipu": inference_step(workload, torch.half, num_threads),
        "torchipu, float": inference_step(workload, torch.float, num_threads),
    }
    benchmark.group = "inference in half"
    measure(benchmark, f"{name} in half, {num_threads} threads", steps, rounds, run.updates, clock=clock)
    benchmark.extra_info["wanted"] = _wanted(run)
