"""BERT, ViT and GPT-2 in plain PyTorch with the splits over IPUs that Graphcore's public examples give by hand.

The layers per IPU are those of the example applications' configurations: BERT-Base 0/4/4/4, BERT-Large 3/7/7/7,
ViT-Base 3/3/3/3 and GPT-2 small 0/4/4/4. Embeddings are on IPU 0; so are the heads that share the embedding's weight,
those of the pretraining of BERT and of GPT-2; ViT's head follows its last layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from workloads import TransformerLayer


class Decoder(nn.Module):
    """Layers of TransformerLayer under a causal mask are what GPT-2 has; the sizes, and so the costs, are the same."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.weight = words.weight  # tied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class LanguageModel(nn.Module):
    """Embeddings, layers and a head that shares the embedding's weight: tokens and labels `[N, L]` to the loss."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(TransformerLayer(width, heads, 0.1) for _ in range(depth))
        self.dense = nn.Linear(width, width)
        self.decoder = Decoder(self.words)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        scores = self.decoder(F.gelu(self.dense(x)))
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


class VisionTransformer(nn.Module):
    """Patches of 16 x 16, layers and a linear head: images `[N, 3, S, S]` and labels to the loss."""

    def __init__(self, size: int, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.positions = nn.Parameter(torch.zeros((size // 16) ** 2, width))
        self.layers = nn.ModuleList(TransformerLayer(width, heads, 0.1) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x).mean(1)), labels)


@dataclass(frozen=True)
class Published:
    """A model and its split by hand.

    Attributes:
        model: Makes the model; all sizes but the depth are divided by its argument.
        inputs: Makes the inputs of a micro-batch, the same way.
        layers: Layers on each IPU.
        head: Where the modules after the layers are.
    """

    model: Callable[[int], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    layers: tuple[int, ...]
    head: dict[str, int]

    def starts(self) -> dict[str, int]:
        """Return the IPU by the module at which a block begins."""
        first = "words" if "dense" in self.head else "patches"
        ipus = [ipu for ipu, count in enumerate(self.layers) for _ in range(count)]
        return {first: 0} | {f"layers.{number}": ipu for number, ipu in enumerate(ipus)} | self.head


def tokens(batch: int, length: int, vocabulary: int) -> tuple[torch.Tensor, ...]:
    """Return tokens and labels."""
    return torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length))


PUBLISHED = {
    "bert-base": Published(
        lambda by: LanguageModel(30522 // by, 128, 768 // by, 12, 12), lambda by: tokens(4, 128 // by, 30522 // by),
        (0, 4, 4, 4), {"dense": 0},
    ),
    "bert-large": Published(
        lambda by: LanguageModel(30522 // by, 128, 1024 // by, 24, 16), lambda by: tokens(2, 128 // by, 30522 // by),
        (3, 7, 7, 7), {"dense": 0},
    ),
    "vit-base": Published(
        lambda by: VisionTransformer(224 // by // 16 * 16, 768 // by, 12, 12, 1000),
        lambda by: (torch.randn(4, 3, *[224 // by // 16 * 16] * 2), torch.randint(1000, (4,))),
        (3, 3, 3, 3), {"norm": 3},
    ),
    "gpt2-small": Published(
        lambda by: LanguageModel(50257 // by, 1024, 768 // by, 12, 12), lambda by: tokens(1, 512 // by, 50257 // by),
        (0, 4, 4, 4), {"dense": 0},
    ),
}
