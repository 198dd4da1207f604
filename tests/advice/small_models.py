"""Models that are compiled in a moment, and the advice on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import torchipu
from torchipu.advice.door import advised
from torchipu.report.facts.gather import Facts
from torchipu.report.recorder import Recorded

LONG = 600.0  # seconds: all is tried, however slow the machine


class Stages(nn.Module):
    """Two blocks, of which the first takes most."""

    def __init__(self, width: int = 512, depth: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)))
        self.narrow = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("wide", ipu_id=0):
            hidden = self.wide(x)
        with torchipu.Block("narrow", ipu_id=1):
            return nn.functional.cross_entropy(self.narrow(hidden), labels)


class Tower(nn.Module):
    """Layers on one IPU."""

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def train_step(model: nn.Module, *, momentum: float = 0.0, **options: Any) -> torchipu.TrainStep:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    return torchipu.TrainStep(model, optimizer, torchipu.Options(**options))


def compiled(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> torchipu.TrainStep:
    step = train_step(model, **options)
    step.compile(*inputs)
    return step


def facts_of(step: Any, seconds: float = LONG) -> Facts:
    return advised(Recorded(step.profile, step.compiled, is_step=True, owner=step), seconds)


def stages_step(samples: int = 16, **options: Any) -> torchipu.TrainStep:
    inputs = torch.zeros(samples, 512), torch.zeros(samples, dtype=torch.long)
    return compiled(Stages(), *inputs, **{"gradient_accumulation": 4, **options})
