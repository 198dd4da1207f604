"""Pipelines over two processes each, whose replicas add up over processes; run by ``tests.distributed.forked``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import torchipu
from tests.distributed.forked import Scenario
from tests.parts import cases
from tests.parts.cases import Case, Stack, Tied, samples, sgd, tokens

torch.set_num_threads(1)
AT_A_PORT = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "OMP_NUM_THREADS": "1"}
PIPELINES, STAGES = 2, 2

# Models of two IPUs take less to capture, five times; "replicas" and "single" have two IPUs for each process.
CASES: dict[str, Case] = {
    "clipped": Case(lambda: Stack(2), lambda: samples(64), {"gradient_accumulation": 8, "max_grad_norm": 0.1}, sgd),
    "dropped": Case(lambda: Stack(2, dropout=0.3), lambda: samples(96), {
        "gradient_accumulation": 2, "device_iterations": 3, "output_mode": "all", "seed": 7,
    }),
    "drawn": Case(lambda: Stack(2, dropout=0.3), lambda: samples(64), {"gradient_accumulation": 4}, sgd),
    "half": Case(lambda: Stack(2, norm="layer"), lambda: samples(64, torch.half), {
        "gradient_accumulation": 4, "automatic_loss_scaling": True, "loss_scaling": 2.0**15,
        "stochastic_rounding": True, "loss_scale_bin_edge": 1e-3, "seed": 3,
    }, sgd, torch.half, calls=4),
    "replicas": Case(lambda: Stack(norm="batch", dropout=0.2), lambda: samples(128), {
        "gradient_accumulation": 4, "replicas": 2, "seed": 5, "output_mode": "all", "broadcast_buffers": False,
    }, sgd),
    "single": Case(Stack, lambda: samples(32), {"output_mode": "all"}, sgd),
    "tied": Case(Tied, tokens, {"gradient_accumulation": 2, "seed": 2, "output_mode": "all"}),
}


def share(case: Case, pipeline: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what the replicas of one pipeline are given of what all are: some of every micro-batch."""
    options = torchipu.Options(**case.options)
    runs = options.gradient_accumulation * options.device_iterations
    return [t.unflatten(0, (runs, PIPELINES, -1))[:, pipeline].flatten(0, 1) for t in tensors]


def train(case: Case, *, pipeline: int | None = None, **options: Any) -> dict[str, Any]:
    """Train, with all replicas or those of a pipeline; return losses, weights and the loss scale."""
    step = cases.made(case, **options)
    torch.manual_seed(4)
    outputs = []
    for _ in range(case.calls):
        inputs = case.inputs() if pipeline is None else share(case, pipeline, case.inputs())
        results = step(*inputs)
        outputs.append((results[1] if isinstance(results, tuple) else results).tolist())
    weights = step.gather()
    return {
        "losses": outputs, "scale": step.loss_scale,
        "weights": {name: value.tolist() for name, value in weights.items() if "running" not in name},
    }


def alone(rank: int, name: str) -> Any:
    """Run a case in one process with all replicas."""
    case = CASES[name]
    return train(case, replicas=PIPELINES * case.options.get("replicas", 1))


def groups(rank: int) -> tuple[Any, Any]:
    """Return the group of this process's pipeline, and that of the processes that have its stages."""
    dist.init_process_group("gloo", rank=rank, world_size=PIPELINES * STAGES)
    mesh = dist.init_device_mesh("cpu", (PIPELINES, STAGES), mesh_dim_names=("data", "pipeline"))
    return mesh["pipeline"].get_group(), mesh["data"].get_group()


def together(rank: int, name: str) -> Any:
    """Run a case as one process of the grid; weights of other processes begin otherwise and do not count."""
    pipeline_group, process_group = groups(rank)
    case = CASES[name]

    def other() -> Any:
        model = case.model()
        if rank // STAGES:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1.0)
        return model

    return train(
        dataclasses.replace(case, model=other), pipeline=rank // STAGES, pipeline_group=pipeline_group,
        process_group=process_group,
    )


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def differ(rank: int) -> Any:
    """Make steps of which one pipeline has another option, and then calls of which one process fails."""
    pipeline_group, process_group = groups(rank)
    case = CASES["single"]
    inputs = share(case, rank // STAGES, case.inputs())
    other = {"loss_scaling": 2.0} if rank // STAGES else {}
    step = cases.made(case, pipeline_group=pipeline_group, process_group=process_group, **other)
    result = {"options": error_of(lambda: step(*inputs))}
    step = cases.made(case, pipeline_group=pipeline_group, process_group=process_group)
    step(*inputs)
    if rank == 1:  # the targets are read by the second stage
        inputs[1] = torch.full_like(inputs[1], 99)
    result["target"] = error_of(lambda: step(*inputs))
    time.sleep(2)  # others ask for the reason
    return result


def lose(rank: int) -> Any:
    """Train in a grid of which one process ends before the second call."""
    pipeline_group, process_group = groups(rank)
    case = CASES["single"]
    inputs = share(case, rank // STAGES, case.inputs())
    step = cases.made(case, pipeline_group=pipeline_group, process_group=process_group)
    step(*inputs)
    if rank == 3:
        raise ValueError("of this test")
    begin = time.monotonic()
    return error_of(lambda: step(*inputs)), time.monotonic() - begin


def warm_up() -> None:
    """Train, which imports much that all processes then have."""
    train(CASES["single"])


SCENARIOS = {
    **{f"{name} alone": Scenario(partial(alone, name=name), (0,)) for name in CASES},
    **{name: Scenario(partial(together, name=name), (0, 1, 2, 3), AT_A_PORT) for name in CASES},
    "differing": Scenario(differ, (0, 1, 2, 3), AT_A_PORT),
    "lost": Scenario(lose, (0, 1, 2, 3), AT_A_PORT),
}
