"""What a process holds after many calls: ``python -m tests.reliability memory --size 100000`` calls through each door.

Each door runs in a process of its own, in which nothing else allocates.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import torchipu
import torchipu.poptorch as poptorch

WARM = 2_000
"""Calls before the first look: allocators take what they keep."""
LEAST = 1 << 20
"""Bytes that may come over all calls; allocators round."""


class WithLoss(nn.Module):
    """A small network and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of the squares."""
        returned: torch.Tensor = self.layers(x).square().mean()
        return returned


def _call_compiled() -> Callable[[torch.Tensor], object]:
    compiled = torch.compile(WithLoss(), backend="ipu", fullgraph=True)

    def call(x: torch.Tensor) -> object:
        with torch.no_grad():
            return compiled(x)

    return call


def _train_compiled() -> Callable[[torch.Tensor], object]:
    model = WithLoss()
    compiled = torch.compile(model, backend="ipu", fullgraph=True)
    return lambda x: torch.autograd.grad(compiled(x), list(model.parameters()))


def _train_step() -> Callable[[torch.Tensor], object]:
    model = WithLoss()
    return torchipu.TrainStep(model, torch.optim.AdamW(model.parameters()))


def _poptorch() -> Callable[[torch.Tensor], object]:
    return poptorch.inferenceModel(WithLoss(), poptorch.Options().showCompilationProgressBar(False))


DOORS: dict[str, Callable[[], Callable[[torch.Tensor], object]]] = {
    "torch.compile": _call_compiled, "torch.compile, backward": _train_compiled,
    "InferenceStep": lambda: torchipu.InferenceStep(WithLoss()), "TrainStep": _train_step, "poptorch": _poptorch,
}


def resident() -> int:
    """Return the bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def handles() -> int:
    """Return how many files and threads this process has."""
    return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))


def growth(door: str, calls: int) -> tuple[int, int]:
    """Return by how many bytes, and how many files and threads, this process grows in so many calls through a door."""
    torch.manual_seed(0)
    call, x = DOORS[door](), torch.randn(8, 16)
    for _ in range(min(WARM, calls)):
        call(x)
    gc.collect()
    before, held = resident(), handles()
    for _ in range(calls):
        call(x)
    gc.collect()
    return resident() - before, handles() - held


def _growth_to(pipe: multiprocessing.connection.Connection, door: str, calls: int) -> None:
    pipe.send(growth(door, calls))


def run(size: int) -> dict[str, int]:
    """Make so many calls through each door.

    Returns:
        By door, how many kibibytes were added after the first calls; how many doors added more than a mebibyte, or
        files or threads.
    """
    found, grown = dict[str, int](), 0
    context = multiprocessing.get_context("spawn")
    for door in DOORS:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_growth_to, args=(there, door, size))
        process.start()
        there.close()
        added, handles_added = here.recv()
        process.join()
        found[f"{door}, KiB"] = added >> 10
        grown += added > LEAST or handles_added > 0
    return {"calls": size, "doors": len(DOORS), "grown": grown, **found}
