"""What a first training step takes without a compile cache and with a filled one, each in a fresh process.

    python benchmarks/first_step.py --rounds 7 --threads 2

Counts the time on the CPU and that of the clock, less that of imports and of making the model; the two take turns.
Prints medians. Other work on the machine makes the clock's worthless.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent

PROGRAM = """
import json, sys, time
import torch
sys.path.insert(0, sys.argv[1])
import torchipu, torchipu.backend
from workloads import WORKLOADS

workload, door, threads = WORKLOADS[sys.argv[2]], sys.argv[3], int(sys.argv[4])
torch.set_num_threads(threads)
options = {"allow_out_of_memory": True, "host_threads": threads}

class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        return workload.loss(self.model(inputs), inputs)

if door == "step":
    torch.manual_seed(0)
    model = WithLoss(workload.model().train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step, inputs = torchipu.TrainStep(model, optimizer, torchipu.Options(**options)), workload.inputs()
    call = lambda: step(inputs)
else:
    call = workload.step(lambda model: torch.compile(model, backend="ipu", options=options))
seconds = []
for _ in range(3):
    began = time.process_time(), time.perf_counter()
    call()
    seconds.append((time.process_time() - began[0], time.perf_counter() - began[1]))
print(json.dumps([*seconds[0], *seconds[2]]))
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--workload", default="bert-small-train", help="a name in workloads.WORKLOADS")
    parser.add_argument("--door", choices=("step", "compile"), default="step", help="TrainStep or torch.compile")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def first_and_later(arguments: argparse.Namespace, cache: str | None) -> list[float]:
    """Return the seconds of the first step on the CPU and by the clock, and those of a later one, in a fresh process.

    Args:
        arguments: Of the command line.
        cache: Folder of the compile cache; None for none.
    """
    environment = os.environ | {
        "TORCHIPU_CACHE": "0" if cache is None else "1", "TORCHIPU_CACHE_DIR": cache or "",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(HERE), arguments.workload, arguments.door, str(arguments.threads)],
        env=environment, capture_output=True, text=True, check=False,
    )
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    found: dict[str, list[list[float]]] = {"without a cache": [], "with a filled one": []}
    with tempfile.TemporaryDirectory() as cache:
        first_and_later(arguments, cache)  # fills it
        for _ in range(arguments.rounds):
            found["without a cache"].append(first_and_later(arguments, None))
            found["with a filled one"].append(first_and_later(arguments, cache))
    for clock, name in enumerate(("seconds on the CPU", "seconds by the clock")):
        show(arguments, name, {who: [sample[clock::2] for sample in samples] for who, samples in found.items()})


def show(arguments: argparse.Namespace, clock: str, found: dict[str, list[list[float]]]) -> None:
    """Print the medians by one clock.

    Args:
        arguments: Of the command line.
        clock: What it counts.
        found: By contender: of each round the first step and a later one.
    """
    where = f"{arguments.workload}, {arguments.door}, {arguments.threads} threads"
    table = Table(title=f"{where}: {clock}, medians of {arguments.rounds}")
    for column in ("", "first step", "a step after it", "the difference"):
        table.add_column(column, justify="right" if column else "left")
    medians = []
    for name, samples in found.items():
        first, later = (statistics.median(column) for column in zip(*samples, strict=True))
        medians.append(first)
        table.add_row(name, f"{first:.2f}", f"{later:.2f}", f"{first - later:.2f}")
    Console().print(table)
    print(f"with a filled cache: {medians[1] / medians[0]:.1%} of the time without")


if __name__ == "__main__":
    main()
