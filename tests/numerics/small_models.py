"""A BERT and a residual network that train in seconds, on data whose labels cannot be known for sure."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

WORDS, LENGTH, SIZE, CLASSES = 24, 8, 32, 6
MASK = WORDS - 1


class Attention(torch.nn.Module):
    """Two heads over a short sequence."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, size = x.shape
        q, k, v = self.qkv(x).view(samples, length, 3, 2, size // 2).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / (size // 2) ** 0.5, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(samples, length, size))


class Layer(torch.nn.Module):
    """A layer of BERT: norms after each sum."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.attention = Attention(size)
        self.first, self.second = torch.nn.Linear(size, 2 * size), torch.nn.Linear(2 * size, size)
        self.middle, self.last = torch.nn.LayerNorm(size), torch.nn.LayerNorm(size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(x + self.attention(x))
        return self.last(x + self.second(F.gelu(self.first(x))))


class SmallBert(torch.nn.Module):
    """Two layers that guess masked words; the loss is computed in float, as users of halves do."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, SIZE)
        self.places = torch.nn.Parameter(torch.randn(LENGTH, SIZE) * 0.02)
        self.layers = torch.nn.Sequential(Layer(SIZE), Layer(SIZE))
        self.head = torch.nn.Linear(SIZE, WORDS)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.layers(self.words(tokens) + self.places))
        return F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())


def sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw walks of a Markov chain with a quarter of the words masked, and the words."""
    chance = torch.softmax(2 * torch.randn(MASK, MASK, generator=torch.Generator().manual_seed(9)), -1)
    words = [torch.randint(0, MASK, (count,), generator=generator)]
    for _ in range(LENGTH - 1):
        words.append(torch.multinomial(chance[words[-1]], 1, generator=generator)[:, 0])
    labels = torch.stack(words, 1)
    masked = torch.rand(labels.shape, generator=generator) < 0.25
    return torch.where(masked, MASK, labels), labels


class Residual(torch.nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.second = torch.nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = torch.nn.BatchNorm2d(made), torch.nn.BatchNorm2d(made)
        self.short: torch.nn.Module = torch.nn.Identity()
        if given != made:
            self.short = torch.nn.Sequential(
                torch.nn.Conv2d(given, made, 1, stride, bias=False), torch.nn.BatchNorm2d(made)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.short(x))


class SmallResNet(torch.nn.Module):
    """A stem and three blocks over images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2),
        )
        self.head = torch.nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(x).mean((2, 3))).float(), labels)


class NarrowResNet18(torch.nn.Module):
    """ResNet-18 with all of its layers and an eighth of its channels, for images of 8 x 8: halved twice."""

    def __init__(self) -> None:
        super().__init__()
        blocks, given = [], 8
        for made, stride in ((8, 1), (16, 2), (32, 2), (64, 1)):
            blocks += [Residual(given, made, stride), Residual(made, made, 1)]
            given = made
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), *blocks,
        )
        self.head = torch.nn.Linear(64, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(x).mean((2, 3))).float(), labels)


def images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw noisy pictures of six kinds; three labels in ten are drawn at random."""
    kinds = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(9))
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    pictures = kinds[labels] * 0.5 + torch.randn(count, 3, 8, 8, generator=generator)
    other = torch.randint(0, CLASSES, (count,), generator=generator)
    return pictures, torch.where(torch.rand(count, generator=generator) < 0.3, other, labels)
