"""Runs a function in several processes at once, which are forked by one that has imported torch already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]

PROGRAM = """
import gc, json, os, sys, traceback
import torch, torch.distributed, torchipu
import torchipu.step, torchipu.distributed.exchange
from datetime import timedelta
from importlib import import_module
from tests.spared import spare
torch.set_num_threads(1)
spare()
state = torch.get_rng_state()
class Warm(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).sum()
model = Warm(2, 2)
step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(host_threads=1))
step(torch.ones(2, 2))  # imports much, which all processes then have
spare()  # Dynamo's part
torch.set_rng_state(state)
folder, groups = sys.argv[1], json.loads(sys.argv[2])
functions = []
for name, _, _ in groups:
    module, _, name = name.partition(":")
    functions.append(getattr(import_module(module), name))
gc.collect()
gc.freeze()
number = 0
children = {}
for group, (_, size, argument) in enumerate(groups):
    function = functions[group]
    children = {}
    for rank in range(size):
        child = os.fork()
        if child:
            children[child] = rank
            continue
        status = 0
        try:
            torch.set_num_threads(1)
            if size > 1:
                store = torch.distributed.FileStore(f"{folder}/store-{group}", size)
                torch.distributed.init_process_group(
                    "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60),
                )
            torch.save(function(rank, size, argument), f"{folder}/{group}-{rank}.pt")
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    while children:
        child, code = os.wait()
        rank = children.pop(child)
        if code:
            print(f"rank {rank} of group {group} ended with {code}", file=sys.stderr)
            number = 1
sys.exit(number)
"""


@dataclass(frozen=True)
class Group:
    """Some processes.

    Args:
        function: ``module:name``; it is called with the rank, the number of processes and the argument as JSON.
        size: How many; more than one have torch's default process group.
        argument: For the function.
    """

    function: str
    size: int
    argument: object = None


def run(
    function: str, sizes: list[int], folder: Path, argument: object = None, timeout: float = 300.0,
) -> list[list[Any]]:
    """Run a function in groups of processes, one group after another.

    Args:
        function: ``module:name``; it is called with the rank, the number of processes and the argument as JSON.
        sizes: Processes of each group; one of more than one has torch's default process group.
        folder: An empty folder for what they return, which torch saves.
        argument: For the function.
        timeout: Seconds for all of them.

    Returns:
        What each rank of each group returned.
    """
    return run_all([Group(function, size, argument) for size in sizes], folder, timeout)


def run_all(groups: Sequence[Group], folder: Path, timeout: float = 300.0) -> list[list[Any]]:
    """Run groups of processes, one after another.

    Args:
        groups: The groups.
        folder: An empty folder for what they return, which torch saves.
        timeout: Seconds for all of them.

    Returns:
        What each rank of each group returned.
    """
    told = [[group.function, group.size, json.dumps(group.argument)] for group in groups]
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(told)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "aliases"), os.environ.get("PYTHONPATH", "")]),
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"the processes did not end within {timeout} s:\n{output}") from None
    assert process.returncode == 0, output
    return [
        [torch.load(folder / f"{number}-{rank}.pt", weights_only=False) for rank in range(group.size)]
        for number, group in enumerate(groups)
    ]


def until(condition: Any, seconds: float = 10.0) -> bool:
    """Wait for a condition, and return whether it came to hold."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())
