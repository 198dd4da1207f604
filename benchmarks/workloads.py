"""The models that are measured, and a training or inference step of each through eager, Inductor and torchipu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from library_workloads import (
    LSTM,
    NUM_WORDS,
    Loss,
    bert_base,
    bert_small,
    gpt2_small,
    same_words,
    square_of_result,
    square_of_states,
    square_of_states_and_pooled,
    t5_small,
    timm_model,
    wav2vec2_base,
    whisper_tiny_encoder,
    word_classes,
)
from networks import Generator, GraphNetwork, UNet

Step = Callable[[], object]


class DemoNet(nn.Module):
    """The CNN of ``examples/mnist_pipelined.py`` without blocks: `[N, 1, 28, 28]` to `[N, 10]`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.linear1 = nn.Linear(320, 256)
        self.linear2 = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.linear2(F.relu(self.linear1(x.flatten(1))))


class MLP(nn.Module):
    """Three linear layers: `[N, 784]` to `[N, 10]`."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class TransformerLayer(nn.Module):
    """Self-attention and a feed-forward part, each added to its input and normalised after."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        x = self.norm1(x + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width))))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class TransformerClassifier(nn.Module):
    """Embeddings, two Transformer layers, mean over the tokens, a linear layer: int64 `[N, L]` to `[N, 10]`."""

    def __init__(
        self, num_words: int = 1000, length: int = 64, width: int = 128, num_heads: int = 4, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(TransformerLayer(width, num_heads, dropout) for _ in range(2)))
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.words(tokens) + self.positions(places)).mean(1))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation beside the input, or beside its projection."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.beside: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.beside = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.beside(x))


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016, table 1): `[N, 3, H, W]` to `[N, num_classes]`."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        in_channels = 64
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [ResidualBlock(in_channels, channels, stride), ResidualBlock(channels, channels, 1)]
            in_channels = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


@dataclass(frozen=True)
class Workload:
    """A model with inputs of fixed shapes.

    Attributes:
        name: In the tables, and for ``--workload``.
        model: Makes the model.
        inputs: Makes the inputs of the model.
        loss: Of what the model returns, and its inputs.
        training: Whether a step trains; otherwise it infers under ``no_grad``.
        frozen: Whether an inference step may prepare the weights once, as with ``freezing`` of Inductor.
        libraries: What must be installed.
    """

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], torch.Tensor]
    loss: Loss
    training: bool = True
    frozen: bool = False
    libraries: tuple[str, ...] = ()

    def step(
        self, compile_model: Callable[[nn.Module], Callable[..., torch.Tensor]] | None = None,
        compile_update: Callable[[Callable[[], object]], Callable[[], object]] | None = None,
    ) -> Step:
        """Return a step of the workload on a model of its own, with the same weights each time.

        Args:
            compile_model: Such as ``torch.compile``; None for eager. The loss is eager for all.
            compile_update: Likewise, of the optimiser's step; None for eager, as most users have it.
        """
        torch.manual_seed(0)
        model = self.model().train(self.training)
        called = model if compile_model is None else compile_model(model)
        inputs = self.inputs()
        if not self.training:
            model.requires_grad_(False)

            def infer() -> torch.Tensor:
                with torch.no_grad():
                    return called(inputs)

            return infer
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
        update = optimiser.step if compile_update is None else compile_update(optimiser.step)

        def train() -> torch.Tensor:
            optimiser.zero_grad(set_to_none=True)
            loss = self.loss(called(inputs), inputs)
            loss.backward()
            update()
            return loss.detach()

        return train


def images(*shape: int) -> Callable[[], torch.Tensor]:
    """Return a maker of normally distributed images."""
    return lambda: torch.randn(shape, generator=torch.Generator().manual_seed(2))


def tokens(batch: int, length: int, num_words: int = 1000) -> Callable[[], torch.Tensor]:
    """Return a maker of random tokens `[batch, length]`."""
    return lambda: torch.randint(num_words, (batch, length), generator=torch.Generator().manual_seed(2))


def classes(batch: int, num_classes: int) -> Loss:
    """Return the cross entropy with random classes, the same each time."""
    labels = torch.randint(num_classes, (batch,), generator=torch.Generator().manual_seed(1))
    return lambda output, inputs: F.cross_entropy(output, labels)


def trained_and_inferred(workload: Workload) -> tuple[Workload, ...]:
    """Return a model's workloads: training, inference, and inference with frozen weights."""
    return tuple(
        replace(workload, name=f"{workload.name}-{suffix}", training=suffix == "train", frozen=suffix == "frozen")
        for suffix in ("train", "infer", "frozen")
    )


TIMM, TRANSFORMERS = ("timm",), ("transformers",)


def of_timm(name: str, model: str, batch: int) -> Workload:
    """Return the training of a classifier of timm at 224 x 224."""
    return Workload(name, timm_model(model), images(batch, 3, 224, 224), classes(batch, 1000), libraries=TIMM)


def of_transformers(
    name: str, model: Callable[[], nn.Module], inputs: Callable[[], torch.Tensor], loss: Loss
) -> Workload:
    """Return the training of a model of transformers."""
    return Workload(name, model, inputs, loss, libraries=TRANSFORMERS)


OFTEN_MEASURED = (
    Workload("resnet18", ResNet18, images(8, 3, 64, 64), classes(8, 1000)),
    of_timm("resnet50", "resnet50", 4),
    of_timm("vit-tiny", "vit_tiny_patch16_224", 8),
    of_transformers("bert-base", bert_base, tokens(4, 128, 30000), square_of_states),
    of_transformers("bert-small", bert_small, tokens(8, 128, NUM_WORDS), square_of_states_and_pooled),
    of_transformers("gpt2-small", gpt2_small, tokens(2, 256, NUM_WORDS), same_words),
    Workload("lstm", LSTM, tokens(16, 64, 5000), word_classes),
    Workload("resnet18-224", ResNet18, images(8, 3, 224, 224), classes(8, 1000)),
    of_timm("mobilenetv3-large", "mobilenetv3_large_100", 8),
    of_timm("convnext-tiny", "convnext_tiny", 4),
    of_timm("convnext-atto", "convnext_atto", 8),
)
"""Models that the kernels were written beside."""
HELD_OUT = (
    of_timm("regnety-008", "regnety_008", 4),
    of_timm("efficientnet-b0", "efficientnet_b0", 4),
    of_timm("swin-tiny", "swin_tiny_patch4_window7_224", 4),
    of_timm("deit-tiny", "deit_tiny_patch16_224", 4),
    of_transformers("t5-small", t5_small, tokens(4, 128, 32000), square_of_states),
    of_transformers("whisper-tiny-encoder", whisper_tiny_encoder, images(1, 80, 3000), square_of_states),
    of_transformers("wav2vec2-base", wav2vec2_base, images(2, 16000), square_of_states),
    Workload("unet", UNet, images(2, 3, 128, 128), square_of_result),
    Workload("dcgan-generator", Generator, images(16, 100), square_of_result),
    Workload("graph-network", GraphNetwork, images(4096, 64), square_of_result),
)
"""Models that no kernel was written beside: what is said of the others must hold of these."""
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("demo-cnn-train", DemoNet, images(40, 1, 28, 28), classes(40, 10)),
        Workload("mlp-train", MLP, images(64, 784), classes(64, 10)),
        Workload("mlp-4-train", MLP, images(4, 784), classes(4, 10)),
        Workload("mlp-128-train", MLP, images(128, 784), classes(128, 10)),
        Workload("transformer-train", TransformerClassifier, tokens(16, 64), classes(16, 10)),
        *(measured for model in (*OFTEN_MEASURED, *HELD_OUT) for measured in trained_and_inferred(model)),
    )
}


class WithLoss(nn.Module):
    """A classifier that returns its logits and the loss, as :class:`torchipu.TrainStep` needs it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(x)
        return logits, F.cross_entropy(logits, labels)
