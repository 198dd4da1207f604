"""What it takes until asynchronous loaders are ready, beside torch's loader with as many forked workers.

    pytest benchmarks/bench_loaders.py --benchmark-only -s
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console
from rich.table import Table

from starting_loaders import CONTENDERS

PROGRAM = Path(__file__).with_name("starting_loaders.py")


def measured(name: str) -> dict[str, float]:
    """Return what a contender took in a process of its own."""
    time.sleep(0.1)
    command = [sys.executable, str(PROGRAM), name]
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True, start_new_session=True)
    return dict(json.loads(found.stdout))


def test_start_of_eight_workers(benchmark: BenchmarkFixture, rounds: int) -> None:
    """Time, time on CPUs and memory until the first batch of each; medians over rounds in turns, and their ratios."""
    names = list(CONTENDERS)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            samples[name].append(measured(name))
    table = Table(title="eight workers ready", title_justify="left")
    table.add_column("loaders")
    kinds = list(samples["torch"][0])
    for kind in kinds:
        table.add_column(kind, justify="right")
        table.add_column("of torch's", justify="right")
    for name in names:
        cells = []
        for kind in kinds:
            ratios = [
                mine[kind] / theirs[kind] for mine, theirs in zip(samples[name], samples["torch"], strict=True)
            ]
            benchmark.extra_info[f"{name}: {kind}"] = statistics.median(ratios)
            median = statistics.median(each[kind] for each in samples[name])
            cells += [f"{median:.3f}", f"{statistics.median(ratios):.2f}x"]
        table.add_row(name, *cells)
    print()
    Console(width=120).print(table)
    benchmark.group = "loaders"
    benchmark.pedantic(measured, args=("asynchronous",), rounds=1, iterations=1)
