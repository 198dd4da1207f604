"""Capture and compile time beside Inductor's cold compile, each in a fresh process with empty caches.

    pytest benchmarks/bench_compile.py --benchmark-only -s
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console
from rich.table import Table

from workloads import WORKLOADS

HERE = Path(__file__).parent

# Timed: from the call of torch.compile to the end of the first step. Not timed: imports, the model, and a first
# step in eager mode, which pays for what torch sets up once in a process.
PROGRAM = """
import json, sys, time
import torch
sys.path.insert(0, sys.argv[1])
from workloads import WORKLOADS
workload, backend = WORKLOADS[sys.argv[2]], sys.argv[3]
torch.set_num_threads(int(sys.argv[4]))
workload.step()()
if backend == "inductor":
    import torch._inductor.compile_fx
    compile_model = torch.compile
else:
    import torchipu.backend
    compile_model = lambda model: torch.compile(model, backend="ipu", options={"allow_out_of_memory": True})
began = time.perf_counter()
workload.step(compile_model)()
print(json.dumps(time.perf_counter() - began))
"""


def cold_compile_s(workload: str, backend: str, num_threads: int, cache: Path) -> float:
    """Return seconds from ``torch.compile`` to the end of the first step, in a fresh process.

    Args:
        workload: A name in ``WORKLOADS``.
        backend: ``inductor`` or ``ipu``.
        num_threads: Host threads.
        cache: An empty folder for the caches of Inductor.
    """
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(HERE), workload, backend, str(num_threads)],
        env=environment, capture_output=True, text=True, check=False,
    )
    if done.returncode:
        pytest.fail(f"{backend} failed on {workload}:\n{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", list(WORKLOADS))
@pytest.mark.usefixtures("chosen")
def test_cold_compile(
    benchmark: BenchmarkFixture, name: str, contenders: tuple[str, ...], num_threads: int, rounds: int, tmp_path: Path
) -> None:
    """From ``torch.compile`` to the end of the first step; at most three times each, since Inductor takes minutes."""
    times: dict[str, list[float]] = {who: [] for who in contenders if who in ("torchipu", "inductor")}
    for turn in range(min(rounds, 3)):
        for who, found in times.items():
            cache = tmp_path / f"{who}{turn}"
            cache.mkdir()
            found.append(cold_compile_s(name, "ipu" if who == "torchipu" else who, num_threads, cache))
    medians = {who: statistics.median(found) for who, found in times.items()}
    benchmark.extra_info["median_s"] = medians
    table = Table(title=f"{name}: cold compile and first step", title_justify="left")
    table.add_column("contender")
    table.add_column("median s", justify="right")
    for who, median in medians.items():
        table.add_row(who, f"{median:.2f}")
    if "inductor" in medians:
        benchmark.extra_info["share_of_inductor"] = medians["torchipu"] / medians["inductor"]
        table.add_row("torchipu / inductor", f"{medians['torchipu'] / medians['inductor']:.3f}")
    print()
    Console().print(table)
    # What pytest-benchmark shows includes the start of the process; the medians above do not.
    benchmark.group = "cold compile, process start included"
    cache = tmp_path / "shown"
    cache.mkdir()
    benchmark.pedantic(cold_compile_s, args=(name, "ipu", num_threads, cache), rounds=1, iterations=1)
