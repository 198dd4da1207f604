"""A CNN for digits, for examples that are about something else than their model."""

from __future__ import annotations

import torch
from torch import nn


class SmallClassifier(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 10, 5, stride=2), nn.ReLU(), nn.Conv2d(10, 20, 3, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(20 * 5 * 5, 10),
        )
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits `[N, 10]` of images `[N, 1, 28, 28]`, and the loss."""
        logits = self.layers(images)
        return logits, self.loss(logits, labels)
