"""Stochastic rounding of float32 to half beside torch's own conversion, which rounds to nearest.

    pytest benchmarks/bench_rounding.py --benchmark-only -s
"""

from __future__ import annotations

import pytest
import torch
from bench_step import measure
from pytest_benchmark.fixture import BenchmarkFixture

from torchipu.host.executor import GraphExecutor
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType, Role
from torchipu.options import Options
from torchipu.passes.precision import set_precision


def rounding_graph(count: int) -> Graph:
    """Return a program that makes ``[count]`` floats halves."""
    x, y = Tensor("x", (count,), DType.FLOAT, Role.INPUT), Tensor("y", (count,), DType.HALF, Role.ACTIVATION)
    cast = Op("cast", (x,), (y,), {"dtype": DType.HALF}, "ipu.cast.default", ("self",))
    return set_precision(Graph("cast", (x,), (y,), (cast,)), Options(stochastic_rounding=True))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1 << 14, 1 << 18, 1 << 24], ids=["cached", "level 2", "memory"])
def test_stochastic_rounding(benchmark: BenchmarkFixture, count: int, threads: int, rounds: int) -> None:
    """One program that casts, against ``Tensor.half``, on as many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(count)
        executor = GraphExecutor(rounding_graph(count), threads=threads, seed=1)
        benchmark.group = "stochastic rounding"
        steps = {"torchipu": lambda: executor(x), "eager": lambda: x.half()}
        measure(benchmark, f"{count} floats to half, {threads} threads", steps, rounds)
    finally:
        torch.set_num_threads(before)
