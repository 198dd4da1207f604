"""Pipelines over two and three processes, and what goes wrong in them; run by ``tests.distributed.forked``."""

from __future__ import annotations

import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.forked import Scenario
from tests.parts import cases, checkpoints, faults

torch.set_num_threads(1)  # what a process does in several threads cannot go on in a fork of it


def warm_up() -> None:
    """Train, which imports much that all processes then have."""
    cases.run("pipelined")


def meet(rank: int, size: int, seconds: float = 60) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it
    dist.init_process_group(
        "gloo", init_method=f"file://{Path.cwd()}/meeting", rank=rank, world_size=size,
        timeout=timedelta(seconds=seconds),
    )


def run(rank: int, size: int, name: str) -> dict[str, Any]:
    """Run a case as one of several processes."""
    meet(rank, size)
    return cases.run(name, pipeline_group=dist.group.WORLD)


def share(rank: int) -> dict[str, Any]:
    meet(rank, 2)
    return checkpoints.share(rank)


def fail(rank: int) -> dict[str, Any]:
    """Let go wrong what leaves both processes there, one after another."""
    meet(rank, 2)
    found = {}
    for fault in faults.HARMLESS:
        torch.manual_seed(3)
        found[fault.__name__] = fault(rank)
    return found


def die(rank: int) -> dict[str, Any]:
    meet(rank, 2)
    return faults.killed(rank)


def be_silent(rank: int) -> dict[str, Any]:
    meet(rank, 2, faults.SECONDS_OF_SILENCE)
    return faults.silent(rank)


SCENARIOS = {
    **{name: Scenario(partial(run, size=2, name=name), (0, 1)) for name in cases.OF_TWO},
    **{name: Scenario(partial(run, size=3, name=name), (0, 1, 2)) for name in cases.OF_THREE},
    "shared": Scenario(share, (0, 1)),
    "failed": Scenario(fail, (0, 1)),
    "killed": Scenario(die, (0, 1)),
    "silent": Scenario(be_silent, (0, 1)),
}
