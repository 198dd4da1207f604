"""Runs a function in several processes at once, which are forked by one that has imported torch already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys, traceback
import torch, torch.distributed, torchipu
import torchipu.step, torchipu.distributed.exchange
from datetime import timedelta
from importlib import import_module
module, name, folder, sizes, argument = sys.argv[1:]
function = getattr(import_module(module), name)
number = 0
children = {}
for group, size in enumerate(map(int, sizes.split(","))):
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
    module, _, name = function.partition(":")
    command = [
        sys.executable, "-c", PROGRAM, module, name, str(folder), ",".join(map(str, sizes)), json.dumps(argument),
    ]
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
        [torch.load(folder / f"{group}-{rank}.pt", weights_only=False) for rank in range(size)]
        for group, size in enumerate(sizes)
    ]


def until(condition: Any, seconds: float = 10.0) -> bool:
    """Wait for a condition, and return whether it came to hold."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())
