"""Kernels beside those of ATen, one table row for each function, in interleaved runs.

    pytest benchmarks/bench_kernels.py --benchmark-only -s
    pytest benchmarks/bench_kernels.py --benchmark-only -s -k conv-gradients

A call of ours goes through the bound plan, with new storage for the results, as ATen's does; what a compiled model
spends outside its kernels is measured by ``bench_step.py``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest
import torch
from kernel_cases import CASES, KernelCase
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console
from rich.table import Table

import torchipu
from interleaved import Timing, interleave, speed_ups
from torchipu.host.executor import GraphExecutor

Row = tuple[str, str, Timing, Timing, float]


class _Function(torch.nn.Module):
    def __init__(self, case: KernelCase) -> None:
        super().__init__()
        self.function = case.function

    def forward(self, *operands: torch.Tensor) -> object:
        return self.function(*operands)


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    """Collect the rows; print them, slowest first, when all have been measured."""
    found: list[Row] = []
    yield found
    table = Table(title=f"kernels, {torch.get_num_threads()} threads", title_justify="left")
    for heading in ("group", "function", "ATen ms", "torchipu ms", "faster by", "quartiles"):
        table.add_column(heading, justify="left" if heading in ("group", "function") else "right")
    for group, name, theirs, ours, ratio in sorted(found, key=lambda row: row[4]):
        ratios = [a / b for a, b in zip(theirs.samples, ours.samples, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        times = (f"{timing.median_s * 1e3:.3f}" for timing in (theirs, ours))
        table.add_row(group, name, *times, f"{ratio:.2f}x", f"{low:.2f} to {high:.2f}")
    print()
    Console(width=120).print(table)


@pytest.mark.parametrize("name", list(CASES))
def test_kernel(
    benchmark: BenchmarkFixture, name: str, num_threads: int, rounds: int, rows: list[Row]
) -> None:
    """The compiled function beside the same ATen calls; results are compared first."""
    case = CASES[name]
    operands = case.operands()
    options = torchipu.Options(host_threads=num_threads, allow_out_of_memory=True)
    step = torchipu.InferenceStep(_Function(case), options)
    step(*operands)
    executor = GraphExecutor(step.compiled.graph, threads=num_threads)
    expected = case.function(*operands)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for ours, theirs in zip(executor(*operands), wanted, strict=False):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours.view_as(theirs), theirs, rtol=1e-3, atol=1e-4 * scale)
    timings = interleave(
        {"ATen": lambda: case.function(*operands), "torchipu": lambda: executor(*operands)},
        rounds=rounds, target_s=0.02,
    )
    ratio = speed_ups(timings)["ATen"]
    benchmark.group = case.group
    benchmark.extra_info["torchipu_faster_by"] = ratio
    rows.append((case.group, name, timings["ATen"], timings["torchipu"], ratio))
    benchmark.pedantic(executor, args=operands, rounds=3, iterations=1)
