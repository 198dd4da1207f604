"""Loaders that fork workers while a model is alive and has just run: ``python -m tests.reliability forks --size 100``.

Workers compute with torch's threads, and with the compiled model itself.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn

import torchipu
import torchipu.poptorch as poptorch

SECONDS = 60.0
"""A worker that has not answered by then hangs."""
SAMPLES, WORKERS = 6, 2


class Computed(torch.utils.data.Dataset[torch.Tensor]):
    """Samples `[8]` that take an operation of torch on many numbers, one that torch shares among threads."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < SAMPLES:
            raise IndexError(index)
        return (torch.arange(1 << 18) * float(index)).exp_().reciprocal_()[:8]


class ByTheModel(Computed):
    """Samples `[8]` that the model computes of those in the process that loads them."""

    def __init__(self, step: torchipu.InferenceStep) -> None:
        self.step = step

    def __getitem__(self, index: int) -> torch.Tensor:
        returned: torch.Tensor = self.step(super().__getitem__(index).repeat(64, 8))[0, :8].clone()
        return returned


def run(size: int) -> dict[str, int]:
    """Fork the workers of so many loaders, half of them torch's and half PopTorch's.

    Returns:
        loaders: How many.
        hangs: Those that timed out.
        wrong: Those whose samples differ from what this process computes, and calls of the model that differ.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    step = torchipu.InferenceStep(model)
    executor = poptorch.inferenceModel(model, poptorch.Options().showCompilationProgressBar(False))
    x = torch.randn(256, 64)
    expected, plain = (step(x), executor(x)), Computed()
    sets = (plain, ByTheModel(step))
    references = [torch.stack([rows[index] for index in range(SAMPLES)]) for rows in sets]
    found = {"loaders": size, "hangs": 0, "wrong": 0}
    for number, place, threads in itertools.islice(
        zip(itertools.count(), itertools.cycle((0, 0, 1)), itertools.cycle((1, 2)), strict=False), size
    ):
        torch.set_num_threads(threads)
        torch.randn(1 << 20).exp_()  # torch's threads are at work shortly before
        found["wrong"] += not (torch.equal(step(x), expected[0]) and torch.equal(executor(x), expected[1]))
        try:
            values = _through_poptorch(plain) if number % 2 and not place else _through_torch(sets[place])
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
            found["hangs"] += 1
            continue
        found["wrong"] += not torch.equal(values, references[place])
    executor.destroy()
    return found


def _through_torch(rows: Computed) -> torch.Tensor:
    loader = torch.utils.data.DataLoader(
        rows, batch_size=2, num_workers=WORKERS, timeout=SECONDS, multiprocessing_context="fork"
    )
    return torch.cat(list(loader))


def _through_poptorch(rows: Computed) -> torch.Tensor:
    loader = poptorch.DataLoader(
        poptorch.Options(), rows, batch_size=2, num_workers=1, timeout=SECONDS, mode=poptorch.DataLoaderMode.Async,
    )
    values = torch.cat([batch.clone() for batch in loader])
    loader.terminate()
    return values
