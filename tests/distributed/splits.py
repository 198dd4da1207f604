"""Trainings that processes share among themselves: what each of them runs in ``test_splits``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchipu

MICRO, CALLS = 3, 2


class Images(nn.Module):
    """A convolution, dropout, and a linear layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(2, 4, 3), nn.Dropout(0.3)
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.conv(x))).flatten(1)[:, :16]
        found = self.head(torch.tanh(self.body(torch.tanh(self.body(hidden)))))
        return nn.functional.cross_entropy(found, y)


class Normalised(Images):
    """Has running statistics, which each replica keeps for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x), y)


class Wide(nn.Module):
    """Has weights that fill several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 1500), nn.Tanh(), nn.Linear(1500, 900), nn.Tanh(), nn.Linear(900, 5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(x.flatten(1)), y)


MODELS: dict[str, Callable[[], nn.Module]] = {"images": Images, "normalised": Normalised, "wide": Wide}


def optimiser(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def shares(rank: int, size: int, case: dict[str, Any], dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what a process is given in each call of one batch for all: its own replicas' micro-batches."""
    options, total = case["options"], case["replicas"]
    runs = options.get("gradient_accumulation", 1) * options.get("device_iterations", 1)
    generator = torch.Generator().manual_seed(1)
    calls = []
    for _ in range(CALLS):
        x = torch.randn(runs, size, total // size, MICRO, 2, 8, 8, generator=generator).to(dtype)
        y = torch.randint(5, (runs, size, total // size, MICRO), generator=generator)
        calls.append((x[:, rank].flatten(0, 2), y[:, rank].flatten()))
    return calls


def train(rank: int, size: int, argument: str) -> dict[str, dict[str, Any]]:
    """Train each case; return losses of this process's replicas, weights, optimiser states and loss scales."""
    results = {}
    for name, case in json.loads(argument).items():
        torch.manual_seed(0 if rank == 0 else 5)  # rank 0 says with which weights all begin
        dtype = torch.half if case.get("half") else torch.float32
        model = MODELS[case["model"]]().to(dtype)
        optimizer = optimiser(case.get("optimiser", "sgd"), model)
        options = torchipu.Options(
            replicas=case["replicas"] // size, output_mode="all", broadcast_buffers=False, **case["options"],
        )
        step = torchipu.TrainStep(model, optimizer, options)
        losses = [step(*call).reshape(-1, case["replicas"] // size) for call in shares(rank, size, case, dtype)]
        results[name] = {
            "losses": torch.cat(losses), "weights": dict(model.named_parameters()),
            "states": [v for state in optimizer.state.values() for v in state.values() if v is not None],
            "scale": step.loss_scale,
        }
    return results
