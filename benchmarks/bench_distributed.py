"""Processes that train together, on this machine: what adding up gradients costs, and what a second process gains.

    python benchmarks/bench_distributed.py                  both, with two processes
    python benchmarks/bench_distributed.py reduction        beside DistributedDataParallel, over gloo on loopback
    python benchmarks/bench_distributed.py training         two of one thread each beside one of one thread
    pytest benchmarks/bench_distributed.py --benchmark-only -s

Both take turns within the same processes, with a pause before each sample, so that a busy machine disturbs all of them
alike; on a very busy one ``--cpu-time`` says what is left when nobody waits for a turn.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

import torchipu
from mnist_pipelined import PipelinedNetwork
from torchipu.distributed.exchange import Bucket, Exchange
from torchipu.distributed.members import Members
from torchipu.distributed.order import Replicas
from torchipu.host.reductions import BUCKET_BYTES

PROCESSES = 2
ROUNDS = 15
PAUSE_S = 0.1
MAX_REDUCTION = 1.15  # of the time of DistributedDataParallel
LEAST_SPEED_UP = 1.7  # of two processes over one
COUNTS_CPU_TIME = "TORCHIPU_BENCH_CPU_TIME"
Samples = dict[str, list[float]]


# ---------------------------------------------------------------------- gradients
def resnet50_sizes() -> list[int]:
    """Return the sizes of the parameters of ResNet-50, those of a block's normalisations taken together."""
    sizes, inputs = [64 * 3 * 7 * 7, 2 * 64], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            sizes += [inputs * width, width * width * 9, width * width * 4, 2 * (width + width + 4 * width)]
            if block == 0:
                sizes += [inputs * width * 4, 2 * width * 4]
            inputs = width * 4
    return [*sizes, 2048 * 1000, 1000]


class _Give(torch.autograd.Function):
    """Hands a parameter a gradient that is there already."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, weight: torch.Tensor, given: torch.Tensor,
                ) -> torch.Tensor:
        ctx.given = given  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> tuple[object, ...]:
        return gradients[0], ctx.given, None  # type: ignore[attr-defined]


class Gradients(nn.Module):
    """Parameters whose gradients cost nothing to compute: what is left of a backward is their reduction."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
        self.given = [torch.randn(size) for size in sizes]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight, given in zip(self.weights, self.given, strict=True):
            x = _Give.apply(x, weight, given)
        return x


def backward_of(model: DistributedDataParallel, *, is_summing: bool, is_keeping: bool = False) -> Callable[[], float]:
    """Return a call that gives the seconds of one backward."""
    def run() -> float:
        if not is_keeping:
            model.zero_grad(set_to_none=True)
        with torch.enable_grad():
            if is_summing:
                loss = model(torch.ones(1, requires_grad=True)).sum()
            else:
                with model.no_sync():
                    loss = model(torch.ones(1, requires_grad=True)).sum()
        return timed(loss.backward)

    return run


def exchange_of(num_floats: int) -> Callable[[], float]:
    """Return a call that gives the seconds in which torchipu adds up as many gradients, all of them made before."""
    memory = torch.zeros(4 * num_floats, dtype=torch.uint8)
    memory.view(torch.float32).normal_()
    places = itertools.pairwise([*range(0, len(memory), BUCKET_BYTES), len(memory)])
    buckets = [Bucket(begin, end - begin, torch.float32, len(memory)) for begin, end in places]
    members = Members(dist.group.WORLD)
    exchange = Exchange(members, Replicas(1, dist.get_rank(), dist.get_world_size()), memory, buckets)

    def add_up() -> None:
        with exchange.running(1):
            os.eventfd_write(exchange.descriptor, len(buckets))
            for number in range(len(buckets)):
                exchange.wait(number)

    return lambda: timed(add_up)


def all_reduce_of(num_floats: int, bucket_bytes: int = 25 << 20) -> Callable[[], float]:
    """Return a call that gives the seconds of torch's own all-reduce, in buckets as large as DDP's, in place."""
    buckets = torch.randn(num_floats).split(bucket_bytes // 4)

    def add_up() -> None:
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()

    return lambda: timed(add_up)


def reduction(rounds: int) -> Samples:
    """Time the reduction of the gradients of ResNet-50, on each of the processes."""
    sizes = resnet50_sizes()
    plain = DistributedDataParallel(Gradients(sizes))
    views = DistributedDataParallel(Gradients(sizes), gradient_as_bucket_view=True)
    return in_turns({
        "DDP": backward_of(plain, is_summing=True),
        "DDP, bucket views": backward_of(views, is_summing=True, is_keeping=True),
        "backward without a sum": backward_of(plain, is_summing=False),
        "all_reduce": all_reduce_of(sum(sizes)),
        "torchipu": exchange_of(sum(sizes)),
    }, rounds)


# ---------------------------------------------------------------------- training
def training(rounds: int, micro_batch: int = 40, accumulation: int = 10, iterations: int = 10) -> Samples:
    """Time calls of the demo's training: by this process and the others together, and by one of them alone."""
    def step(group: str | None) -> Callable[[], object]:
        torch.manual_seed(0)
        model = PipelinedNetwork()
        made = torchipu.TrainStep(
            model, torch.optim.AdamW(model.parameters(), lr=0.001), torchipu.Options(
                gradient_accumulation=accumulation, device_iterations=iterations, output_mode="all", host_threads=1,
                process_group=group,
            ),
        )
        samples = micro_batch * accumulation * iterations
        x, y = torch.randn(samples, 1, 28, 28), torch.randint(0, 10, (samples,))
        return lambda: made(x, y)

    together, alone = step(None), step("alone")

    def by_the_first() -> float:
        return timed(alone if dist.get_rank() == 0 else lambda: None)

    def by_each() -> float:
        return timed(alone)

    return in_turns(
        {"one process": by_the_first, "together": lambda: timed(together), "each by itself": by_each}, rounds,
    )


# ---------------------------------------------------------------------- in turns, on all processes
def timed(call: Callable[[], object]) -> float:
    """Return the seconds until the last process has made a call that all of them begin at once.

    With ``COUNTS_CPU_TIME`` set, those that all threads of all processes have had on CPUs: on a busy machine.
    """
    clock = time.process_time if counts_cpu_time() else time.perf_counter
    dist.barrier()
    time.sleep(PAUSE_S)
    dist.barrier()
    began = clock()
    call()
    seconds = torch.tensor(clock() - began)
    dist.all_reduce(seconds, dist.ReduceOp.SUM if counts_cpu_time() else dist.ReduceOp.MAX)
    return float(seconds)


def counts_cpu_time() -> bool:
    """Whether seconds are those on CPUs, of all threads of all processes."""
    return os.environ.get(COUNTS_CPU_TIME) == "1"


def in_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Samples:
    """Return the seconds of all contenders in every round, in an order that rotates and is the same everywhere."""
    for call in contenders.values():
        call()  # warm: compilation, connections
    samples: Samples = {name: [] for name in contenders}
    names = list(contenders)
    gc.disable()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples[name].append(contenders[name]())
        gc.collect()
    return samples


def on_one_core(what: str, rounds: int) -> Samples:
    """Measure as one of the processes, on a core of its own and with one thread."""
    rank = int(os.environ["LOCAL_RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        return {"reduction": reduction, "training": training}[what](rounds)
    finally:
        dist.destroy_process_group()


def launch(what: str, rounds: int, processes: int = PROCESSES) -> Samples:
    """Start processes by torchrun's agent and return what the first one measured."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id="bench", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.1,
    )
    here = Path(__file__).parent
    found = [str(here), str(here.parent), str(here.parent / "examples"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        report = Path(folder) / "samples.json"
        patch.setenv("PYTHONPATH", os.pathsep.join(found))
        # A program, as torchrun starts it: in processes that multiprocessing spawns, threads that hand work to each
        # other were seen to take twice as long, and DDP, which has none in Python, was not.
        elastic_launch(config, sys.executable)(__file__, what, "--rounds", str(rounds), "--report", str(report))
        samples: Samples = json.loads(report.read_text(encoding="utf-8"))
    return samples


# ---------------------------------------------------------------------- figures
def of_reduction(samples: Samples) -> dict[str, float]:
    """Return how long torchipu and others take beside DDP, whose backward costs something without a sum too."""
    sums = [ddp - bare for ddp, bare in zip(samples["DDP"], samples["backward without a sum"], strict=True)]
    return {
        name: statistics.median(mine / ddp for mine, ddp in zip(samples[name], sums, strict=True))
        for name in ("torchipu", "all_reduce")
    }


def of_training(samples: Samples, processes: int = PROCESSES) -> dict[str, float]:
    """Return the samples a second of all processes beside those of one by itself.

    What processes that do not talk to each other reach is the bound: the machine's, not torchipu's. Of time on CPUs it
    is what they would reach if none waited for another.
    """
    work = processes * processes if counts_cpu_time() else processes
    return {
        name: statistics.median(
            work * one / mine for one, mine in zip(samples["one process"], samples[name], strict=True)
        ) for name in ("together", "each by itself")
    }


def lines_of(what: str, rounds: int) -> Iterator[str]:
    """Measure, print the times, and yield what they say."""
    samples = launch(what, rounds)
    table = Table(title=f"{what}, {PROCESSES} processes", title_justify="left")
    for heading in ("contender", "median ms", "least ms"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for name, found in samples.items():
        table.add_row(name, f"{statistics.median(found) * 1e3:.1f}", f"{min(found) * 1e3:.1f}")
    Console().print(table)
    if what == "reduction":
        for name, ratio in of_reduction(samples).items():
            yield f"{name}: {ratio:.2f} of the time of DDP's reduction (torchipu is to need {MAX_REDUCTION} at most)"
    else:
        for name, ratio in of_training(samples).items():
            yield f"{name}: {ratio:.2f}x one process (together is to reach {LEAST_SPEED_UP})"


@pytest.mark.parametrize("what", ["reduction", "training"])
def test_processes_together(benchmark: BenchmarkFixture, what: str, rounds: int) -> None:
    """Gradients added up beside DDP; two processes beside one."""
    benchmark.group = "processes"
    lines = benchmark.pedantic(lambda: list(lines_of(what, rounds)), rounds=1, iterations=1)
    benchmark.extra_info["found"] = lines
    print("", *lines, sep="\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="reduction, training; both by default")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of every contender")
    parser.add_argument(
        "--cpu-time", action="store_true",
        help="count the time on CPUs of all processes together, not that of the clock: on a busy machine",
    )
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)  # of one of the processes
    flags = parser.parse_args(arguments)
    if flags.report is not None:
        samples = on_one_core(flags.what[0], flags.rounds)
        if os.environ["RANK"] == "0":
            flags.report.write_text(json.dumps(samples), encoding="utf-8")
        return
    os.environ[COUNTS_CPU_TIME] = "1" if flags.cpu_time else "0"
    for what in flags.what or ("reduction", "training"):
        if what not in ("reduction", "training"):
            parser.error(f"{what!r} is neither reduction nor training")
        for line in lines_of(what, flags.rounds):
            print(line)


if __name__ == "__main__":
    main()
