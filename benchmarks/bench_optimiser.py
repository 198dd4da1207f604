"""A compiled step of an optimiser of torch's beside the eager ones: one tensor after another, lists, and fused.

    pytest benchmarks/bench_optimiser.py --benchmark-only -s
"""

from __future__ import annotations

import pytest
import torch
from bench_step import measure
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn


def optimiser_of(width: int, **ways: bool) -> torch.optim.Optimizer:
    """Return AdamW of twelve linear layers, ``[width, 4 width]`` and back in turns, with gradients."""
    weights = [
        nn.Parameter(torch.randn(shape)) for _ in range(6)
        for shape in ((4 * width, width), (4 * width,), (width, 4 * width), (width,))
    ]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return torch.optim.AdamW(weights, lr=1e-4, **ways)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [64, 512], ids=["level 2", "memory"])
def test_optimiser(benchmark: BenchmarkFixture, width: int, threads: int, rounds: int) -> None:
    """AdamW through ``torch.compile(optimiser.step, backend="ipu")``, on as many threads as eager has."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = optimiser_of(width).step
        steps = {
            "torchipu": torch.compile(ours, backend="ipu", options={"host_threads": threads}),
            "eager": optimiser_of(width, foreach=False).step, "eager, lists": optimiser_of(width, foreach=True).step,
            "eager, fused": optimiser_of(width, fused=True).step,
        }
        benchmark.group = "optimiser"
        measure(benchmark, f"AdamW, {width} wide, {threads} threads", steps, rounds)
    finally:
        torch.set_num_threads(before)
        torch._dynamo.reset()
