"""How much faster two processes run a pipeline of two balanced stages than one process does, a thread each.

    python benchmarks/two_processes.py --gradient-accumulation 16

Prints the ratio of medians of interleaved calls. Both need a core of their own: on a busy machine it means nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

import torchipu


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--gradient-accumulation", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--calls", type=int, default=9)
    return parser.parse_args()


def stage(width: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())))


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torchipu.BeginBlock(stage(width), "first", ipu_id=0)
        self.second = torchipu.BeginBlock(stage(width), "second", ipu_id=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.second(self.first(x)), y)


def seconds(call: Callable[[], object]) -> float:
    time.sleep(0.1)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    flags = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0

    def step(group: dist.ProcessGroup | None) -> torchipu.TrainStep:
        model = Model(flags.width)
        return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), torchipu.Options(
            gradient_accumulation=flags.gradient_accumulation, host_threads=1, pipeline_group=group,
            process_group="alone",  # gradients are added up by nobody else
        ))

    inputs = [torch.randn(flags.gradient_accumulation * flags.batch_size, flags.width) for _ in range(2)]
    two, one = step(dist.group.WORLD), step(None) if is_first else None
    two(*inputs)
    if one is not None:
        one(*inputs)
    times: tuple[list[float], list[float]] = [], []
    for _ in range(flags.calls):
        dist.barrier()
        times[1].append(seconds(lambda: two(*inputs)))
        dist.barrier()
        if one is not None:
            times[0].append(seconds(lambda: one(*inputs)))
    dist.barrier()
    if is_first:
        alone, shared = (1000 * statistics.median(some) for some in times)
        print(f"one process {alone:.1f} ms, two {shared:.1f} ms: {alone / shared:.2f} times as fast")
    dist.destroy_process_group()


if __name__ == "__main__":
    if dist.is_torchelastic_launched():
        main()
    else:
        parse_arguments()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *sys.argv]
        sys.exit(subprocess.run(command, check=False, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode)
