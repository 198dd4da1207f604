"""Networks that no library of models brings: a U-Net, the generator of a DCGAN, a graph network."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn


def two_convolutions(in_channels: int, channels: int) -> nn.Sequential:
    """Return two 3x3 convolutions, each with batch normalisation and a ReLU."""
    layers: list[nn.Module] = []
    for first in (in_channels, channels):
        layers += [nn.Conv2d(first, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015) with half its width and batch normalisation: `[N, 3, H, W]` to `[N, 2, H, W]`.

    ``H`` and ``W`` are multiples of 16.
    """

    WIDTHS = (32, 64, 128, 256, 512)

    def __init__(self) -> None:
        super().__init__()
        widths = self.WIDTHS
        self.down = nn.ModuleList(two_convolutions(a, b) for a, b in zip((3, *widths), widths, strict=False))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(two_convolutions(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for level, convolutions in enumerate(self.down):
            x = convolutions(x if level == 0 else F.max_pool2d(x, 2))
            skipped.append(x)
        for up, merge, beside in zip(self.up, self.merge, skipped[-2::-1], strict=True):
            x = merge(torch.cat([beside, up(x)], 1))
        return self.head(x)


class Generator(nn.Module):
    """The generator of a DCGAN (Radford et al. 2016) for images of 64 x 64: `[N, 100]` to `[N, 3, 64, 64]`."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        channels = (100, 8 * width, 4 * width, 2 * width, width)
        layers: list[nn.Module] = []
        for level, (a, b) in enumerate(itertools.pairwise(channels)):
            stride, padding = (1, 0) if level == 0 else (2, 1)
            layers += [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x[:, :, None, None])


class GraphNetwork(nn.Module):
    """Three layers of a graph isomorphism network (Xu et al. 2019): `[nodes, 64]` to `[nodes, 10]`.

    The edges are drawn once: each node has eight neighbours on average.
    """

    def __init__(self, nodes: int = 4096, edges: int = 32768, width: int = 128) -> None:
        super().__init__()
        drawn = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(4))
        self.register_buffer("source", drawn[0])
        self.register_buffer("target", drawn[1])
        self.enter = nn.Linear(64, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()) for _ in range(3)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x.index_add(0, self.target, x[self.source]))
        return self.head(x)
