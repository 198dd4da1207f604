"""Models and eager training loops that the tests of executors share."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import torchipu.poptorch as poptorch


class Classifier(nn.Module):
    """Returns logits ``[N, 3]`` and, with labels, the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(self.body(x).relu())
        return logits if labels is None else (logits, F.cross_entropy(logits, labels))


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs ``[size, 6]`` and labels ``[size]``."""
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)


def options(iterations: int = 1, accumulation: int = 1, mode: Any = None, **more: Any) -> poptorch.Options:
    """Return options for a number of device iterations and micro-batches in each."""
    found = poptorch.Options().deviceIterations(iterations)
    found.Training.gradientAccumulation(accumulation)
    if mode is not None:
        found.outputMode(mode, **more)
    return found


def sgd(model: nn.Module, lr: float = 0.1, **more: Any) -> torch.optim.SGD:
    """Return SGD over a model."""
    return torch.optim.SGD(model.parameters(), lr=lr, **more)


def eager_training(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: tuple[torch.Tensor, ...], updates: int = 1,
    micro_batches: int = 1, mean: bool = True,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Train on the host with the same arithmetic; return what forward returned for every micro-batch."""
    pieces = zip(*(value.chunk(updates * micro_batches) for value in inputs), strict=True)
    results = []
    for _ in range(updates):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            output, loss = model(*next(pieces))
            (loss / micro_batches if mean else loss).backward()
            results.append((output.detach(), loss.detach()))
        optimizer.step()
    return results


def twin_of(model: nn.Module) -> nn.Module:
    """Return a copy that stays on the host."""
    return copy.deepcopy(model)


def training(model: nn.Module, **more: Any) -> poptorch.PoplarExecutor:
    """Return an executor that trains a model by `sgd`, whose arguments these are."""
    return poptorch.trainingModel(model, options(), sgd(model, **more))
