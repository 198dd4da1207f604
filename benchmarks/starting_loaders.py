"""Makes a loader with eight workers, or eight asynchronous ones, and says what that took; run in a fresh process.

    python benchmarks/starting_loaders.py torch

Prints as JSON: seconds until every loader has given its first batch, seconds on CPUs of all processes until then, and
MiB of the processes that were made, pages that several share being split among them.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import torchipu.poptorch.data.loader  # noqa: F401 - imported before the clock starts, as torch's is
from torchipu import poptorch

NUM_WORKERS, BATCH, IMAGES = 8, 8, 256


class Images(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Small images, quick to make."""

    def __len__(self) -> int:
        """Return how many there are."""
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an image `[3, 32, 32]` and its number."""
        return torch.full((3, 32, 32), float(index)), torch.tensor(index)


def asynchronous(**kwargs: Any) -> poptorch.DataLoader:
    """Return an asynchronous loader."""
    return poptorch.DataLoader(
        poptorch.Options(), Images(), batch_size=BATCH, mode=poptorch.DataLoaderMode.Async, **kwargs
    )


CONTENDERS: dict[str, Callable[[], Iterable[Iterable[Any]]]] = {
    "torch": lambda: [torch.utils.data.DataLoader(Images(), batch_size=BATCH, num_workers=NUM_WORKERS)],
    "asynchronous": lambda: [asynchronous() for _ in range(NUM_WORKERS)],
    "asynchronous, workers": lambda: [asynchronous(num_workers=NUM_WORKERS)],
    "asynchronous, from a server": lambda: [asynchronous() for _ in range(NUM_WORKERS)],
}
"""Loaders by name; each with eight workers in all."""


def family() -> list[int]:
    """Return the ids of the processes of this session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == os.getsid(0):
                found.append(int(folder.name))
        except ProcessLookupError:
            continue
    return found


def seconds_on_cpus() -> float:
    """Return the time on CPUs that all processes of this session have had."""
    files = [path for process in family() for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in files if path.exists()) / 1e9


def mebibytes(process: int) -> float:
    """Return the memory of a process, its part of the pages that it shares."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(name: str) -> dict[str, float]:
    """Make loaders and read a batch of each.

    Args:
        name: Of a contender.
    """
    if name.endswith("server"):  # where another thread runs, no process is forked from this one
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    torch.randn(1 << 22).exp_()  # starts torch's threads, which programs have
    on_cpus, began = seconds_on_cpus(), time.perf_counter()
    batches = [iter(loader) for loader in CONTENDERS[name]()]
    for each in batches:
        next(each)
    seconds = time.perf_counter() - began
    on_cpus = seconds_on_cpus() - on_cpus
    return {
        "seconds": seconds, "seconds on CPUs": on_cpus,
        "MiB": sum(mebibytes(process) for process in family() if process != os.getpid()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    print(json.dumps(measure(parser.parse_args().contender)), flush=True)
    os._exit(0)  # what it takes to end is not asked
