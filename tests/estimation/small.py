"""Small models for estimates."""

from __future__ import annotations

import torch
from torch import nn

WIDTH, WORDS = 32, 64


class Layer(nn.Module):
    """One of several alike."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[N, L, width]`."""
        return self.norm(x + torch.nn.functional.gelu(self.dense(x)))


class Tower(nn.Module):
    """An embedding, layers and a loss."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Return scores, or the loss."""
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x)
        return scores if labels is None else nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def tokens(batch: int = 2, length: int = 8) -> torch.Tensor:
    """Return tokens `[N, L]`."""
    return torch.zeros(batch, length, dtype=torch.int64)
