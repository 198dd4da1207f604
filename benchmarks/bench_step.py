"""A step of each workload beside eager, Inductor and other compilers, in one interleaved run.

    pytest benchmarks/bench_step.py --benchmark-only -s
    pytest benchmarks/bench_step.py --benchmark-only -s --workload mlp-train --contender eager
    pytest benchmarks/bench_step.py --benchmark-only -s --speed-page speed.md
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from pytest_benchmark.fixture import BenchmarkFixture

import torchipu
from contenders import CONTENDERS, OURS, WHOLE_STEP, WITH_UPDATE, RefusedError, refuse_other_values
from interleaved import Timing, interleave, print_table, speed_ups
from share_of_peak import PEAK_FLOPS, costliest, flops_of, peak_step
from speed_page import Measured
from workloads import WORKLOADS, DemoNet, Step, Workload

BATCH, ACCUMULATION, ITERATIONS = 40, 1, 100
PEAK = "torch.mm"


def measure(
    benchmark: BenchmarkFixture, title: str, steps: dict[str, Callable[[], object]], rounds: int, updates: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, float], dict[str, Timing]]:
    """Time the steps in turns, print the table, and hand torchipu's step to pytest-benchmark with the ratios.

    Args:
        benchmark: The fixture.
        title: Of the table.
        steps: By contender.
        rounds: Samples of each.
        updates: Weight updates in a call of every contender.
        clock: Seconds.

    Returns:
        By contender, how much faster torchipu is, and the samples.
    """
    timings = interleave(steps, rounds=rounds, clock=clock)
    print()
    print_table(f"{title} ({updates} weight updates a call)" if updates > 1 else title, timings)
    benchmark.extra_info["median_ms_per_update"] = {
        name: timing.median_s * 1e3 / updates for name, timing in timings.items()
    }
    ratios = speed_ups(timings)
    benchmark.extra_info["torchipu_faster_by"] = ratios
    benchmark.extra_info["threads"] = torch.get_num_threads()
    benchmark.pedantic(steps["torchipu"], rounds=5, iterations=1)
    return ratios, timings


@pytest.mark.parametrize("name", list(WORKLOADS))
@pytest.mark.usefixtures("chosen")
def test_step_of_a_model(
    benchmark: BenchmarkFixture, name: str, contenders: tuple[str, ...], num_threads: int, rounds: int,
    measured: dict[str, Measured], clock: Callable[[], float],
) -> None:
    """The same step by everyone: loss and optimiser run eagerly, but in torchipu's whole step."""
    workload = WORKLOADS[name]
    with torch._inductor.config.patch(freezing=workload.frozen):
        steps, refused = steps_of(workload, contenders, num_threads)
        benchmark.group = f"step of {name}"
        peak = {PEAK: peak_step()}
        ratios, timings = measure(benchmark, f"{name}, {num_threads} threads", steps | peak, rounds, clock=clock)
    del ratios[PEAK]
    flops = flops_of(workload.step())
    rate, peak_rate = flops / timings[OURS].median_s, PEAK_FLOPS / timings[PEAK].median_s
    whole, updated = (speed_ups(timings, ours) if ours in timings else {} for ours in (WHOLE_STEP, WITH_UPDATE))
    costliest = costliest_of(workload, num_threads)
    measured[name] = Measured(ratios, updated, whole, refused, rate / peak_rate, costliest)
    benchmark.extra_info["share_of_peak"] = measured[name].share_of_peak
    benchmark.extra_info["costliest"] = measured[name].costliest


def steps_of(
    workload: Workload, contenders: tuple[str, ...], num_threads: int
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Return the steps of those who can run a workload and compute what eager does, and why others cannot."""
    steps: dict[str, Callable[[], object]] = {}
    refused: dict[str, str] = {}
    judged = None if workload.training else workload.step()()
    for who in contenders:
        if not CONTENDERS[who].takes(workload):
            continue
        try:
            step = CONTENDERS[who].make(workload, num_threads)
            result = step()
            if judged is not None:
                refuse_other_values(who, result, judged)
        except (RefusedError, torchipu.IpuError) as error:
            if who == OURS:
                raise
            refused[who] = str(error).splitlines()[0]
        else:
            steps[who] = step
    return steps, refused


def costliest_of(workload: Workload, num_threads: int) -> list[tuple[str, float]]:
    """Return torchipu's costliest kernels; none where the model cannot be captured whole."""
    try:
        return costliest(workload, num_threads)
    except torchipu.IpuError:
        return []


def reference_steps(compiled: bool, x: torch.Tensor, y: torch.Tensor) -> Step:
    """Return the same training as the demo's program, in eager PyTorch or with model, loss and update compiled."""
    torch.manual_seed(0)
    model = DemoNet()
    # Inductor compiles the update too, as one graph: its best case.
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(images), labels)

    forward = torch.compile(loss_of) if compiled else loss_of
    update = torch.compile(optimiser.step) if compiled else optimiser.step
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))

    def run() -> None:
        for images, labels in batches:
            optimiser.zero_grad(set_to_none=True)
            forward(images, labels).backward()
            update()

    return run


@pytest.mark.parametrize("name", ["demo-step"])
@pytest.mark.usefixtures("chosen")
def test_whole_training_step_of_the_demo(
    benchmark: BenchmarkFixture, name: str, contenders: tuple[str, ...], num_threads: int, rounds: int
) -> None:
    """Forward, loss, backward and AdamW of the demo's CNN at batch 40, through ``TrainStep``."""
    from mnist_pipelined import PipelinedNetwork

    generator = torch.Generator().manual_seed(3)
    count = BATCH * ACCUMULATION * ITERATIONS
    x = torch.randn(count, 1, 28, 28, generator=generator)
    y = torch.randint(10, (count,), generator=generator)

    def ours() -> Step:
        torch.manual_seed(0)
        model = PipelinedNetwork()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        # One micro-batch a weight update, as the references train; a pipeline would need more of them.
        options = torchipu.Options(device_iterations=ITERATIONS, execution="sharded", host_threads=num_threads)
        step = torchipu.TrainStep(model, optimiser, options=options)
        return lambda: step(x, y)

    makers = {
        "eager": lambda: reference_steps(False, x, y), "inductor": lambda: reference_steps(True, x, y),
        "torchipu": ours,
    }
    steps: dict[str, Callable[[], object]] = {who: makers[who]() for who in contenders if who in makers}
    benchmark.group = "whole training step"
    title = f"demo CNN, batch {BATCH}, AdamW, {num_threads} threads"
    measure(benchmark, title, steps, rounds, updates=ITERATIONS)
