"""Peak memory of steps beside eager and Inductor, each in a fresh process.

    pytest benchmarks/bench_memory.py --benchmark-only -s
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console
from rich.table import Table

from workloads import WORKLOADS

HERE = Path(__file__).parent
MIB = 2**20
HELD_BY = ("eager", "inductor", "torchipu")
"""Those whose processes are looked at."""

# What compiling takes at its peak is given apart: writing 5 to clear_refs starts the kernel's high-water mark anew.
PROGRAM = """
import gc, json, sys
import torch
sys.path.insert(0, sys.argv[1])
from workloads import WORKLOADS
workload, backend = WORKLOADS[sys.argv[2]], sys.argv[3]
torch.set_num_threads(int(sys.argv[4]))
def resident(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
compile_model = None
if backend == "inductor":
    import torch._inductor.compile_fx
    compile_model = torch.compile
elif backend == "torchipu":
    import torchipu.backend
    options = {"allow_out_of_memory": True, "frozen_weights": workload.frozen}
    compile_model = lambda model: torch.compile(model, backend="ipu", options=options)
before = resident("VmRSS")
step = workload.step(compile_model)
step()
step()
gc.collect()
highest = resident("VmHWM")
open("/proc/self/clear_refs", "w").write("5")
for _ in range(3):
    step()
print(json.dumps({"before": before, "first steps": highest, "step": resident("VmHWM")}))
"""


def peaks(workload: str, contender: str, num_threads: int, cache: Path) -> dict[str, int]:
    """Return bytes held before the model is made, at the peak of the first two steps, and at that of later ones.

    Args:
        workload: A name in ``WORKLOADS``.
        contender: ``eager``, ``inductor`` or ``torchipu``.
        num_threads: Host threads.
        cache: A folder for the caches of Inductor.
    """
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
    }
    if contender == "inductor" and WORKLOADS[workload].frozen:
        environment["TORCHINDUCTOR_FREEZING"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(HERE), workload, contender, str(num_threads)],
        env=environment, capture_output=True, text=True, check=False,
    )
    if done.returncode:
        pytest.fail(f"{contender} failed on {workload}:\n{done.stderr[-3000:]}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def beyond_imports(held: dict[str, int]) -> int:
    """Return the bytes that a step holds at its peak beyond those of the process before the model was made.

    Dynamo alone takes some 100 MiB, whichever backend compiles what it captures.
    """
    return held["step"] - held["before"]


@pytest.mark.parametrize("name", list(WORKLOADS))
@pytest.mark.usefixtures("chosen")
def test_peak_memory(
    benchmark: BenchmarkFixture, name: str, contenders: tuple[str, ...], num_threads: int, tmp_path: Path
) -> None:
    """Resident memory of the process at its peak."""
    found = {who: peaks(name, who, num_threads, tmp_path) for who in contenders if who in HELD_BY}
    table = Table(title=f"{name}: peak resident memory, MiB", title_justify="left")
    columns = ("before the model", "first steps", "later steps", "later steps / eager", "beyond imports / eager")
    for heading in ("contender", *columns):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for who, held in found.items():
        ratio = f"{held['step'] / found['eager']['step']:.2f}" if "eager" in found else ""
        beyond = f"{beyond_imports(held) / beyond_imports(found['eager']):.2f}" if "eager" in found else ""
        table.add_row(who, *(f"{held[key] / MIB:.0f}" for key in ("before", "first steps", "step")), ratio, beyond)
    print()
    Console().print(table)
    benchmark.extra_info["peak_bytes"] = found
    # What pytest-benchmark shows is the time of the process, not its memory.
    benchmark.group = "peak memory: the table above; time of the process here"
    benchmark.pedantic(peaks, args=(name, "torchipu", num_threads, tmp_path), rounds=1, iterations=1)
