"""A training of one layer, for what a machine says of it."""

from __future__ import annotations

import torch
from torch import nn

import torchipu
from torchipu.options import Options
from torchipu.target import Target

WIDTH, MICRO = 32, 4


class Classifier(nn.Module):
    """Returns the loss of one layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(x), y)


def data(replicas: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(MICRO * replicas, WIDTH, generator=generator), torch.zeros(MICRO * replicas, dtype=torch.long)


def trained(target: str | Target, **options: object) -> torchipu.TrainStep:
    """Train once on a machine and return the step."""
    model = Classifier()
    chosen = Options.from_mapping({"target": target, **options})
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options=chosen)
    step(*data(chosen.replicas))
    return step
