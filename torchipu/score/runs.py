"""Training and inference of whole models as programs: what is captured, and with which options it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from torchipu.optim import LAMB, LARS
from torchipu.score.models import MASKED_SHARE, RESNET_STAGES, Bert, ResNet50, SmallCnn, VisionTransformer
from torchipu.score.programs import Frozen
from torchipu.score.shifted_windows import SwinTransformer

BATCHES_A_CALL = 128  # of PopRT's measurements, which say 100 to 128
PREFETCH = 2  # the depth of the streams of both
IO_TILES = 64  # of ByteMLPerf's ResNet-50; PopRT's rows say that IO overlaps, not with how many tiles


# --------------------------------------------------------------------------- workloads
@dataclass(frozen=True)
class Resnet:
    """ResNet-50; training recomputes every block from its input."""

    batch: int
    trains: bool
    dtype: torch.dtype = torch.half
    bytes_in: bool = False
    narrow: str = ""
    layerwise: bool = False

    def model(self) -> nn.Module:
        """Return the model."""
        return ResNet50(norms=self.trains, narrow=self.narrow).to(self.dtype).train(self.trains)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return images, in training also labels."""
        images = torch.zeros(self.batch, 3, 224, 224, dtype=torch.uint8 if self.bytes_in else self.dtype)
        return (images, torch.zeros(self.batch, dtype=torch.int64)) if self.trains else (images,)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Return SGD with momentum, or LARS."""
        if not self.trains:
            return None
        if self.layerwise:
            return LARS(model.parameters())
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """Return a block for each block of the network, so that these are recomputed one by one."""
        if not self.trains:
            return {}
        return {path: (path, 0) for path in ("stem", *RESNET_BLOCKS, "head")}


RESNET_BLOCKS = tuple(f"blocks.{number}" for number in range(sum(count for _, count in RESNET_STAGES)))


@dataclass(frozen=True)
class Transformer:
    """BERT, its layers spread over IPUs in training; trained on masked words, or on where answers begin and end."""

    width: int
    heads: int
    length: int
    batch: int
    layers: tuple[int, ...]
    trains: bool
    dtype: torch.dtype = torch.half
    narrow: bool = False
    answers: bool = False
    exported: bool = False

    @property
    def pretrains(self) -> bool:
        """Whether it is trained on masked words."""
        return self.trains and not self.answers

    def model(self) -> nn.Module:
        """Return the model."""
        made = Bert(
            self.width, sum(self.layers), self.heads, self.length, pretrains=self.pretrains,
            dropout=0.1 if self.trains else 0.0, narrow=self.narrow, exported=self.exported,
        )
        return made.to(self.dtype).train(self.trains)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return tokens, in training also labels and places of the masked words."""
        tokens = torch.zeros(self.batch, self.length, dtype=torch.int64)
        if not self.trains:
            return (tokens,)
        if self.answers:
            return tokens, torch.zeros(self.batch, 2, dtype=torch.int64)
        masked = torch.zeros(self.batch, round(self.length * MASKED_SHARE), dtype=torch.int64)
        return tokens, masked, masked

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Return what the public examples have: LAMB for pretraining, AdamW for fine-tuning."""
        if not self.trains:
            return None
        return LAMB(model.parameters()) if self.pretrains else torch.optim.AdamW(model.parameters())

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """Return embeddings on IPU 0, layers as they are spread, and the head on the last, or where its weight is."""
        if len(self.layers) == 1:
            return {}
        first = dict.fromkeys(("words", "positions", "norm"), ("embedding", 0))
        return first | spread(self.layers) | {"dense": ("head", 0 if self.pretrains else len(self.layers) - 1)}


@dataclass(frozen=True)
class Vit:
    """ViT-B/16, its layers spread over IPUs in training."""

    batch: int
    layers: tuple[int, ...]
    trains: bool

    def model(self) -> nn.Module:
        """Return the model."""
        return VisionTransformer(trains=self.trains).half().train(self.trains)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return images, in training floats and labels.

        Floats are what PyTorch's transforms make; a row that sends others says so, as V027 does of its bytes.
        """
        images = torch.zeros(self.batch, 3, 224, 224, dtype=torch.float if self.trains else torch.half)
        return (images, torch.zeros(self.batch, dtype=torch.int64)) if self.trains else (images,)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Return SGD with momentum, as the public example has for fine-tuning."""
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if self.trains else None

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """Return patches on the first IPU, the head on the last, and the layers as they are spread."""
        if len(self.layers) == 1:
            return {}
        last = len(self.layers) - 1
        return {"patches": ("patches", 0)} | spread(self.layers) | {
            "norm": ("head", last), "head": ("head", last),
        }


@dataclass(frozen=True)
class Swin:
    """Swin-Large in inference."""

    batch: int
    side: int

    def model(self) -> nn.Module:
        """Return the model."""
        return SwinTransformer(self.side).half().eval()

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return images."""
        return (torch.zeros(self.batch, 3, self.side, self.side, dtype=torch.half),)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """None: it is not trained."""
        return None

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """None: one IPU."""
        return {}


@dataclass(frozen=True)
class Cnn:
    """The CNN of a tutorial, trained in float."""

    batch: int

    def model(self) -> nn.Module:
        """Return the model."""
        return SmallCnn()

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return images and labels."""
        return torch.zeros(self.batch, 1, 128, 128), torch.zeros(self.batch, dtype=torch.int64)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Return SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """None: one IPU."""
        return {}


def spread(layers: tuple[int, ...]) -> dict[str, tuple[str, int]]:
    """Return block and IPU of each layer, by how many there are on each IPU."""
    ipus = [ipu for ipu, count in enumerate(layers) for _ in range(count)]
    return {f"layers.{number}": (f"layer{number}", ipu) for number, ipu in enumerate(ipus)}


def layer_by_layer(layers: tuple[int, ...]) -> tuple[str, ...]:
    """Return what is recomputed apart, so that no more than one layer is held: layers, and what lies before them.

    The public examples of BERT and ViT set a checkpoint at the end of each layer (`recompute_checkpoint_every_layer`).
    """
    return ("embedding", "patches", *(f"layer{number}" for number in range(sum(layers))))


# --------------------------------------------------------------------------- configurations
@dataclass(frozen=True, slots=True)
class Run:
    """What a row ran.

    Attributes:
        workload: The model with the inputs of a micro-batch.
        options: Everything else.
        packing: Samples that one input of the model stands for.
    """

    workload: Resnet | Transformer | Vit | Swin | Cnn
    options: Frozen
    packing: float = 1.0

    @property
    def samples(self) -> float:
        """Samples of an update, or of a call."""
        return self.workload.batch * self.packing * self.options.accumulation * self.options.replicas * (
            self.options.iterations
        )


def resnet(
    target: str, replicas: int, batch: int, accumulation: int, memory: float = 0.15, *, layerwise: bool = False,
) -> Run:
    """ResNet-50 on one IPU a replica; images are bytes, as the public example and V027 have them."""
    return Run(Resnet(batch, trains=True, bytes_in=True, layerwise=layerwise), Frozen(
        target, "half", (memory,), accumulation=accumulation, replicas=replicas, recompute=("stem", *RESNET_BLOCKS),
        stochastic=True,
    ))


LARGE, BASE = (1024, 16), (768, 12)
MEMORY_LARGE = (0.15, 0.25, 0.25, 0.25)
PACKED = {128: 1.17, 384: 1.7, 512: 2.0}
"""Sequences in a pack, by its length, in the public examples' configurations."""


def bert(
    target: str, length: int, batch: int, accumulation: int, *, replicas: int = 4, size: tuple[int, int] = LARGE,
    layers: tuple[int, ...] = (3, 7, 7, 7), memory: tuple[float, ...] = MEMORY_LARGE, packed: bool = False,
    narrow: bool = False, answers: bool = False,
) -> Run:
    """BERT in a pipeline, with states of the optimiser off the chip."""
    workload = Transformer(*size, length, batch, layers, trains=True, narrow=narrow, answers=answers)
    options = Frozen(
        target, "half", memory, accumulation=accumulation, replicas=replicas, off_chip=True,
        recompute=layer_by_layer(layers), stochastic=True,
    )
    return Run(workload, options, PACKED[length] if packed else 1.0)


def eight_ipus(target: str, accumulation: int, replicas: int) -> Run:
    """BERT-Large over eight IPUs; of its activations floats of 8 bits are kept, as the rows state."""
    return bert(
        target, 512, 3, accumulation, replicas=replicas, layers=(3,) * 8, memory=(0.3,) * 8, packed=True, narrow=True,
    )


def vit(target: str, batch: int, accumulation: int, replicas: int) -> Run:
    """ViT-B/16 in a pipeline of four IPUs, with states of the optimiser off the chip."""
    return Run(Vit(batch, (3, 3, 3, 3), trains=True), Frozen(
        target, "half", (0.3,) * 4, accumulation=accumulation, replicas=replicas, off_chip=True,
        recompute=layer_by_layer((3, 3, 3, 3)), stochastic=True,
    ))


def card(workload: Resnet | Transformer | Vit | Swin, *, memory: float | None = None, overlap: bool = False) -> Run:
    """Inference on a C600, many batches a call; halves have half partials."""
    is_half = getattr(workload, "dtype", torch.half) == torch.half
    return Run(workload, Frozen(
        "c600", "half" if is_half else "float", () if memory is None else (memory,), iterations=BATCHES_A_CALL,
        overlap=overlap, io_tiles=IO_TILES if overlap else 0, prefetch=PREFETCH,
    ))


def images(
    batch: int, dtype: torch.dtype = torch.half, *, overlap: bool = True, bytes_in: bool = False, narrow: str = "",
) -> Run:
    """ResNet-50 on a C600."""
    return card(Resnet(batch, trains=False, dtype=dtype, bytes_in=bytes_in, narrow=narrow), overlap=overlap)


def answering(
    batch: int, length: int, dtype: torch.dtype = torch.half, memory: float | None = None, *, narrow: bool = False,
    exported: bool = False,
) -> Run:
    """BERT-Base on a C600."""
    workload = Transformer(
        *BASE, length, batch, (12,), trains=False, dtype=dtype, narrow=narrow, exported=exported,
    )
    return card(workload, memory=memory)
