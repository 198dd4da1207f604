"""Runs a function in several processes at once, which are forks of one that has imported torch already."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from tests.forks import ROOT, fork


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
    paths = [ROOT, ROOT / "aliases", *map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    fork(
        f"{__name__}:fork_groups", str(folder), told, output=folder / "printed.txt", path=paths,
        environment={"PYTHONPATH": os.pathsep.join(map(str, paths)), "GLOO_SOCKET_IFNAME": "lo"},
    ).wait(timeout)
    return [
        [torch.load(folder / f"{number}-{rank}.pt", weights_only=False) for rank in range(group.size)]
        for number, group in enumerate(groups)
    ]


def fork_groups(folder: str, groups: Sequence[tuple[str, int, str]]) -> None:
    """Run a function in each of several groups of processes, with its argument as JSON; save what it returns.

    Raises:
        SystemExit: A process failed: those of its group are the last to be started.
    """
    named = [function.partition(":") for function, _, _ in groups]
    functions = [getattr(import_module(module), name) for module, _, name in named]
    gc.collect()
    gc.freeze()
    for group, (_, size, argument) in enumerate(groups):
        children = {}
        for rank in range(size):
            child = os.fork()
            if not child:
                _call(functions[group], rank, size, argument, Path(folder), group)
            children[child] = rank
        has_failed = False
        while children:
            child, code = os.wait()
            rank = children.pop(child)
            if code:
                print(f"rank {rank} of group {group} ended with {code}", file=sys.stderr)
                has_failed = True
        if has_failed:
            raise SystemExit(1)


def _call(
    function: Callable[[int, int, str], Any], rank: int, size: int, argument: str, folder: Path, group: int,
) -> NoReturn:
    """Call a function in this fork, within its group of processes, and end."""
    status = 0
    try:
        torch.set_num_threads(1)
        if size > 1:
            store = dist.FileStore(str(folder / f"store-{group}"), size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
        torch.save(function(rank, size, argument), folder / f"{group}-{rank}.pt")
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def until(condition: Any, seconds: float = 10.0) -> bool:
    """Wait for a condition, and return whether it came to hold."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())
