"""Trains the demo CNN in a process of its own and prints how much its resident memory grew, in bytes.

``python -m tests.models.steps_in_memory step|compile STEPS``
"""

import os
import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / name) for name in ("benchmarks",)]

import torch
import torch.nn.functional as F

from torchipu import TrainStep
from workloads import DemoNet, WithLoss

WARM_UP = 100


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(door: str, steps: int) -> int:
    """Return the growth over a number of steps after the warm-up."""
    torch.manual_seed(0)
    model = DemoNet()
    optimiser = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="ipu")
    step = TrainStep(WithLoss(model), optimiser)

    def through_compile(x: torch.Tensor, y: torch.Tensor) -> None:
        optimiser.zero_grad()
        F.cross_entropy(compiled(x), y).backward()
        optimiser.step()

    run = {"step": step, "compile": through_compile}[door]
    before = 0
    for number in range(WARM_UP + steps):
        run(torch.randn(8, 1, 28, 28), torch.randint(10, (8,)))
        if number + 1 == WARM_UP:
            before = resident_bytes()
    return resident_bytes() - before


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
