"""Swin Transformer in plain PyTorch, at the size of the published rows, as an exporter leaves it for inference."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from torchipu.score.models import SUMMARY_CLASSES

PATCH = 4
LARGE_WIDTH, LARGE_STAGES = 192, ((2, 6), (2, 12), (18, 24), (2, 48))
"""Width of the first stage of Swin-Large; layers and heads of each (Liu et al. 2021, section 3.3)."""


class WindowLayer(nn.Module):
    """Self-attention within windows of an image and a feed-forward part, each normalised before and added to its input.

    The bias of relative positions, which an exporter folds from its table, is `[heads, W^2, W^2]`; layers that shift
    windows have a mask for each window beside it, `[windows, 1, W^2, W^2]`.

    Args:
        width: Of a token.
        heads: Of attention.
        side: Of the square image in tokens.
        window: Side of a window, which divides it.
        shift: By how many tokens windows are shifted, round the image's edges.
    """

    mask: torch.Tensor | None

    def __init__(self, width: int, heads: int, side: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.side, self.window, self.shift = heads, side, window, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        tokens = window * window
        self.bias = nn.Parameter(torch.zeros(heads, tokens, tokens))
        windows = (side // window) ** 2
        self.register_buffer("mask", torch.zeros(windows, 1, tokens, tokens) if shift else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[N, side, side, width]`."""
        batch, width, count = len(x), x.shape[-1], self.side // self.window
        y = self.norm1(x)
        y = y.roll((-self.shift, -self.shift), (1, 2)) if self.shift else y
        y = y.view(batch, count, self.window, count, self.window, width).transpose(2, 3)
        y = self._attended(y.reshape(batch * count * count, self.window * self.window, width))
        y = y.view(batch, count, count, self.window, self.window, width).transpose(2, 3).reshape(x.shape)
        x = x + (y.roll((self.shift, self.shift), (1, 2)) if self.shift else y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def _attended(self, x: torch.Tensor) -> torch.Tensor:
        """Return what tokens of the same window give each other: `[N x windows, W^2, width]`."""
        windows, tokens, width = x.shape
        q, k, v = self.qkv(x).view(windows, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q * (width // self.heads) ** -0.5 @ k.transpose(-1, -2) + self.bias
        if self.mask is not None:
            each = scores.view(-1, len(self.mask), self.heads, tokens, tokens) + self.mask
            scores = each.view(windows, self.heads, tokens, tokens)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(windows, tokens, width))


class Merging(nn.Module):
    """Squares of two by two tokens to one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[N, side / 2, side / 2, 2 width]`."""
        corners = (x[:, row::2, column::2] for column in (0, 1) for row in (0, 1))
        return self.dense(self.norm(torch.cat(list(corners), -1)))


class SwinTransformer(nn.Module):
    """Swin-Large: images `[N, 3, side, side]` to scores `[N, 1000]`.

    Args:
        side: Of an image: 224, with windows of 7 tokens, or 384, with windows of 12.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        width, tokens, window = LARGE_WIDTH, side // PATCH, side // 32
        self.patches, self.first = nn.Conv2d(3, width, PATCH, PATCH), nn.LayerNorm(width)
        self.layers = nn.ModuleList()
        for stage, (depth, heads) in enumerate(LARGE_STAGES):
            if stage:
                self.layers.append(Merging(width))
                width, tokens = 2 * width, tokens // 2
            for number in range(depth):
                shift = window // 2 if number % 2 and tokens > window else 0
                self.layers.append(WindowLayer(width, heads, tokens, window, shift))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, SUMMARY_CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        x = self.first(self.patches(images).permute(0, 2, 3, 1))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean((1, 2)))
