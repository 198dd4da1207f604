"""What many micro-batches, replicas and IPUs cost the host, beside one IPU that takes all samples at once.

    pytest benchmarks/bench_parallel.py --benchmark-only -s
"""

from __future__ import annotations

import resource
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
from workloads import MLP, DemoNet, TransformerClassifier

RUNS = 16
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, tuple[int, ...]]] = {
    "mlp": (MLP, (784,), 0, (4, 16, 64)),
    "demo": (DemoNet, (1, 28, 28), 0, (8, 40)),
    "transformer": (lambda: TransformerClassifier(dropout=0.0), (64,), 1000, (2, 8)),
}
"""By name: the model, the shape of a sample, the number of words where it is of words, and micro-batches."""
CASES = [(name, micro) for name, (_, _, _, sizes) in MODELS.items() for micro in sizes]


class WithLoss(nn.Module):
    """A classifier and its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x), y)


def training(name: str, samples: int, **options: object) -> Callable[[], object]:
    """Return one weight update over so many samples."""
    make, shape, words, _ = MODELS[name]
    torch.manual_seed(0)
    model = WithLoss(make())
    x = torch.randint(0, words, (samples, *shape)) if words else torch.randn(samples, *shape)
    y = torch.randint(0, 10, (samples,))
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
        torchipu.Options(allow_out_of_memory=True, **options),  # type: ignore[arg-type]
    )
    return lambda: step(x, y)


def peak_growth_kib(call: Callable[[], object]) -> int:
    """Return by how much a first call raises the peak of the memory of this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def processor_time_ratios(steps: dict[str, Callable[[], object]], of: str, rounds: int) -> dict[str, float]:
    """Return each step's processor time over that of one, the median over rounds taken in turns.

    Other programs on the machine disturb it less than the time on the clock.
    """
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        spent = {}
        for name, call in steps.items():
            call()
            began = time.process_time()
            call()
            call()
            spent[name] = time.process_time() - began
        for name in steps:
            ratios[name].append(spent[name] / spent[of])
    return {name: statistics.median(found) for name, found in ratios.items()}


def compare(
    benchmark: BenchmarkFixture, title: str, steps: dict[str, Callable[[], object]], of: str, rounds: int
) -> None:
    """Time the steps in turns and print them, and keep the ratios to one of them."""
    grown = {name: peak_growth_kib(call) for name, call in steps.items()}
    timings = interleave(steps, rounds=rounds)
    print()
    print_table(title, timings, of)
    wall = speed_ups(timings, of)
    processor = processor_time_ratios(steps, of, rounds)
    for name in wall:
        print(f"{name}: {wall[name]:.2f} of the time of {of}, {processor[name]:.2f} of its processor time")
    benchmark.extra_info["wall_ratio"] = wall
    benchmark.extra_info["processor_time_ratio"] = processor
    benchmark.extra_info["peak_growth_kib"] = grown
    benchmark.pedantic(steps[of], rounds=3, iterations=1)


@pytest.mark.parametrize(("name", "micro"), CASES)
def test_replicas_beside_one_batch(
    benchmark: BenchmarkFixture, name: str, micro: int, num_threads: int, rounds: int
) -> None:
    """16 replicas, and 16 micro-batches, of b samples beside one of 16 b."""
    benchmark.group = "replicas"
    steps = {
        "one batch": training(name, RUNS * micro, host_threads=num_threads),
        "replicas": training(name, RUNS * micro, host_threads=num_threads, replicas=RUNS),
        "micro-batches": training(name, RUNS * micro, host_threads=num_threads, gradient_accumulation=RUNS),
    }
    compare(benchmark, f"{name}, {RUNS} x {micro} samples, {num_threads} threads", steps, "one batch", rounds)


class InBlocks(nn.Module):
    """The demo's network over so many IPUs, and its loss."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.net = DemoNet()
        self.ipus = [layer * num_ipus // 4 for layer in range(4)]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net, ipus = self.net, self.ipus
        with torchipu.Block("conv1", ipu_id=ipus[0]):
            x = F.relu(F.max_pool2d(net.conv1(x), 2))
        with torchipu.Block("conv2", ipu_id=ipus[1]):
            x = F.relu(F.max_pool2d(net.conv2(x), 2))
        with torchipu.Block("linear1", ipu_id=ipus[2]):
            x = F.relu(net.linear1(x.flatten(1)))
        with torchipu.Block("linear2", ipu_id=ipus[3]):
            return F.cross_entropy(net.linear2(x), y)


def test_four_ipus_beside_one(benchmark: BenchmarkFixture, num_threads: int, rounds: int) -> None:
    """The demo's network pipelined over four IPUs beside the same program on one."""
    benchmark.group = "pipeline"
    x, y = torch.randn(16 * 40, 1, 28, 28), torch.randint(0, 10, (16 * 40,))

    def pipelined(num_ipus: int) -> Callable[[], object]:
        torch.manual_seed(0)
        model = InBlocks(num_ipus)
        step = torchipu.TrainStep(
            model, torch.optim.AdamW(model.parameters(), lr=1e-3),
            torchipu.Options(gradient_accumulation=16, host_threads=num_threads),
        )
        return lambda: step(x, y)

    steps = {"one IPU": pipelined(1), "four IPUs": pipelined(4)}
    compare(benchmark, f"demo, 16 x 40 samples, {num_threads} threads", steps, "one IPU", rounds)
