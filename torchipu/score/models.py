"""The published models in plain PyTorch: what their rows time, at full size."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torchipu import fp8, recomputation_checkpoint

RESNET_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of the blocks of ResNet-50 (He et al. 2016, table 1)."""
EXPANSION = 4
SUMMARY_CLASSES = 1000


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1 beside the input; the 3x3 one has the stride, as in version 1.5."""

    def __init__(self, channels: int, width: int, stride: int, *, norms: bool, narrow: bool = False) -> None:
        super().__init__()
        out = width * EXPANSION
        self.body = nn.Sequential(
            *convolved(channels, width, 1, 1, norms, narrow), nn.ReLU(),
            *convolved(width, width, 3, stride, norms, narrow), nn.ReLU(), *convolved(width, out, 1, 1, norms, narrow),
        )
        self.beside = nn.Sequential(
            *convolved(channels, out, 1, stride, norms, narrow) if channels != out else [nn.Identity()]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[N, 4 width, H / stride, W / stride]`."""
        return F.relu(self.body(x) + self.beside(x))


class NarrowConvolution(nn.Module):
    """A convolution of floats of 8 bits: its input is cast, its weights are kept as such, results are halves."""

    code: torch.Tensor

    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, kernel // 2
        self.register_buffer("code", torch.zeros(out, channels, kernel, kernel, dtype=torch.uint8))
        self.bias = nn.Parameter(torch.zeros(out, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[N, out, H / stride, W / stride]`."""
        return fp8.convolution(fp8.quantise(x), self.code, stride=self.stride, padding=self.padding) + self.bias


class NarrowLinear(nn.Module):
    """A linear layer of floats of 8 bits, as `NarrowConvolution` is one of convolutions."""

    code: torch.Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("code", torch.zeros(inputs, outputs, dtype=torch.uint8))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., outputs]`."""
        rows = fp8.quantise(x).flatten(0, -2)
        return fp8.matmul(rows, self.code).view(*x.shape[:-1], -1) + self.bias


def convolved(
    channels: int, out: int, kernel: int, stride: int, norms: bool, narrow: bool = False,
) -> list[nn.Module]:
    """Return a convolution and its batch normalisation; without, a bias stands for what that folds to."""
    if narrow:
        return [NarrowConvolution(channels, out, kernel, stride)]
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=not norms)
    return [convolution, nn.BatchNorm2d(out)] if norms else [convolution]


class ResNet50(nn.Module):
    """ResNet-50 v1.5: images of bytes or floats `[N, 3, 224, 224]` to scores, or with labels to the loss.

    Args:
        norms: Whether it has batch normalisations; in inference they are folded into the convolutions.
        narrow: Which layers are of floats of 8 bits: ``blocks``, ``all``, or none.
    """

    def __init__(self, *, norms: bool, narrow: str = "") -> None:
        super().__init__()
        self.stem = nn.Sequential(*convolved(3, 64, 7, 2, norms, narrow == "all"), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.ModuleList()
        channels = 64
        for stage, (width, count) in enumerate(RESNET_STAGES):
            for number in range(count):
                stride = 2 if stage and not number else 1
                self.blocks.append(Bottleneck(channels, width, stride, norms=norms, narrow=bool(narrow)))
                channels = width * EXPANSION
        self.head = (NarrowLinear if narrow == "all" else nn.Linear)(channels, SUMMARY_CLASSES)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Return scores `[N, 1000]`, or the loss."""
        x = self.stem(images if images.is_floating_point() else images.to(self.head.bias.dtype))
        for block in self.blocks:
            x = block(x)
        scores = self.head(x.mean((2, 3)))
        return scores if labels is None else F.cross_entropy(scores, labels)


class Widened(torch.autograd.Function):
    """Values from their floats of 8 bits; gradients go to the values that these were rounded from."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        """Return the values of bytes."""
        return fp8.dequantise(code, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient as it comes."""
        return gradients[0], None


class Layer(nn.Module):
    """Self-attention and a feed-forward part, each added to its input and normalised after."""

    def __init__(
        self, width: int, heads: int, dropout: float, *, hidden: int | None = None, narrow: bool = False,
        linear: type[nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        hidden = hidden or 4 * width
        self.heads, self.narrow = heads, narrow
        self.dropped = nn.Dropout(dropout)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, hidden), linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return `[N, L, width]`.

        Scores are scaled, masked, normalised and dropped op by op, as the published implementations do.

        Args:
            x: Values.
            mask: Added to scores `[N, heads, L, L]`, as far as it has these sizes.
        """
        if self.narrow:
            x = Widened.apply(x, recomputation_checkpoint(fp8.quantise(x.detach())))
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        shares = self.dropped((scores if mask is None else scores + mask).softmax(-1))
        attended = (shares @ v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(x + self.dropout(self.out(attended)))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class ExportedNorm(nn.Module):
    """A layer normalisation op by op, as PyTorch's exporter writes it into ONNX models of before opset 17."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., width]`."""
        x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


class ExportedLayer(nn.Module):
    """A layer of BERT op by op, as PyTorch's exporter writes it into an ONNX model.

    Queries, keys and values are products of their own, and norms and GELU the ops that they are made of.
    """

    def __init__(self, width: int, heads: int, *, linear: type[nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (linear(width, width) for _ in range(4))
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)
        self.norm1, self.norm2 = ExportedNorm(width), ExportedNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return `[N, L, width]`; see `Layer`."""
        batch, length, width = x.shape
        split = batch, length, self.heads, width // self.heads
        q, k, v = (part(x).view(split).transpose(1, 2) for part in (self.query, self.key, self.value))
        shares = (q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5 + mask).softmax(-1)
        x = self.norm1(x + self.out((shares @ v).transpose(1, 2).reshape(batch, length, width)))
        y = self.up(x)
        return self.norm2(x + self.down(y * (torch.erf(y / math.sqrt(2)) + 1.0) * 0.5))


class Bert(nn.Module):
    """BERT's encoder with a head: the loss of masked words in pretraining, else where an answer begins and ends.

    Args:
        width: Of a token.
        depth: How many layers.
        heads: Of each.
        length: Of a sequence.
        pretrains: Which head.
        dropout: Share of values that training drops.
        narrow: Whether floats of 8 bits are used: in pretraining what a layer is computed from, and again in the
            backward pass, is kept in them; in inference the products of linear layers are of them.
        exported: Whether it is an ONNX model, of which nothing is fused; see `ExportedLayer`.
    """

    def __init__(
        self, width: int, depth: int, heads: int, length: int, *, pretrains: bool, dropout: float = 0.0,
        narrow: bool = False, exported: bool = False,
    ) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.norm = (ExportedNorm if exported else nn.LayerNorm)(width)
        linear = NarrowLinear if narrow and not pretrains else nn.Linear
        self.layers = nn.ModuleList(
            ExportedLayer(width, heads, linear=linear) if exported
            else Layer(width, heads, dropout, narrow=narrow and pretrains, linear=linear) for _ in range(depth)
        )
        self.dense = nn.Linear(width, width if pretrains else 2)
        self.pretrains = pretrains

    def forward(
        self, tokens: torch.Tensor, labels: torch.Tensor | None = None, places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return scores `[N, L, 2]`, their loss by `[N, 2]` labels, or that of the words at `[N, P]` places."""
        x = self.norm(self.words(tokens) + self.positions(torch.arange(tokens.shape[1])))
        padding = (tokens == 0).to(x.dtype)[:, None, None, :] * MASKED_SCORE
        for layer in self.layers:
            x = layer(x, padding)
        if labels is None:
            return self.dense(x)
        if places is None:
            return F.cross_entropy(self.dense(x), labels)
        x = x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        scores = F.linear(F.gelu(self.dense(x)), self.words.weight)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


VOCABULARY = 30522
MASKED_SCORE = -1e4
MASKED_SHARE = 0.15


class VisionTransformer(nn.Module):
    """ViT-B/16 (Dosovitskiy et al. 2021): images `[N, 3, 224, 224]` to scores, or with labels to the loss."""

    def __init__(self, *, trains: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.first, self.positions = nn.Parameter(torch.zeros(1, 1, 768)), nn.Parameter(torch.zeros(197, 768))
        self.layers = nn.ModuleList(Layer(768, 12, 0.1 if trains else 0.0) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, SUMMARY_CLASSES)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Return scores `[N, 1000]`, or the loss."""
        patches = self.patches(images.to(self.patches.weight.dtype)).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(images), -1, -1), patches], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        scores = self.head(self.norm(x[:, 0]))
        return scores if labels is None else F.cross_entropy(scores, labels)


class SmallCnn(nn.Module):
    """The CNN of a tutorial for images `[N, 1, 128, 128]`, with labels to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 5, 3), nn.Conv2d(5, 12, 5)
        self.norm = nn.GroupNorm(3, 12)
        self.dense, self.head = nn.Linear(41772, 100), nn.Linear(100, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = self.norm(F.relu(self.conv2(x)))
        x = F.relu(self.dense(x.flatten(1)))
        return F.cross_entropy(self.head(x), labels)
