"""Training and inference of whole models, and whether they fit: the configurations that the published rows state.

Where a row leaves something open, it is taken from a row of the same model, and said beside the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from torchipu.score import stencils
from torchipu.score.kinds import Kind, NotExpressed, Prediction
from torchipu.score.models import MASKED_SHARE, RESNET_STAGES, Bert, ResNet50, SmallCnn, VisionTransformer
from torchipu.score.programs import Frozen, Outcome, outcome_of
from torchipu.score.published import lines_of_kinds, row_of
from torchipu.score.rows import Row
from torchipu.target import lookup_target

TRAINING = ("train-cnn", "train-transformer", "train-vit", "train-small", "train-vlm", "train-speech", "phased", "rts",
            "train-gnn", "train-gnn-host")
INFERENCE = ("infer-cnn", "infer-cnn-fp8", "infer-transformer", "infer-misc", "infer-byteMLPerf")
BATCHES_A_CALL = 128  # of PopRT's measurements, which say 100 to 128
IO_TILES = 64  # of ByteMLPerf's ResNet-50; PopRT's rows say that IO overlaps, not with how many tiles


# --------------------------------------------------------------------------- workloads
@dataclass(frozen=True)
class Resnet:
    """ResNet-50; training recomputes every block from its input."""

    batch: int
    trains: bool
    dtype: torch.dtype = torch.half
    bytes_in: bool = False

    def model(self) -> nn.Module:
        """Return the model."""
        return ResNet50(norms=self.trains).to(self.dtype).train(self.trains)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return images, in training also labels."""
        images = torch.zeros(self.batch, 3, 224, 224, dtype=torch.uint8 if self.bytes_in else self.dtype)
        return (images, torch.zeros(self.batch, dtype=torch.int64)) if self.trains else (images,)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Return SGD with momentum, which LARS has as many states as."""
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if self.trains else None

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """Return a block for each block of the network, so that these are recomputed one by one."""
        if not self.trains:
            return {}
        return {path: (path, 0) for path in ("stem", *RESNET_BLOCKS, "head")}


RESNET_BLOCKS = tuple(f"blocks.{number}" for number in range(sum(count for _, count in RESNET_STAGES)))


@dataclass(frozen=True)
class Transformer:
    """BERT, its layers spread over IPUs in training."""

    width: int
    heads: int
    length: int
    batch: int
    layers: tuple[int, ...]
    trains: bool
    dtype: torch.dtype = torch.half
    narrow: bool = False

    def model(self) -> nn.Module:
        """Return the model."""
        depth = sum(self.layers)
        made = Bert(self.width, depth, self.heads, self.length, pretrains=self.trains, narrow=self.narrow)
        return made.to(self.dtype).train(self.trains)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return tokens, in training also labels and places of the masked words."""
        tokens = torch.zeros(self.batch, self.length, dtype=torch.int64)
        if not self.trains:
            return (tokens,)
        masked = torch.zeros(self.batch, round(self.length * MASKED_SHARE), dtype=torch.int64)
        return tokens, masked, masked

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Return AdamW, which LAMB has as many states as."""
        return torch.optim.AdamW(model.parameters()) if self.trains else None

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """Return embeddings and head on IPU 0, where they share a weight, and the layers as they are spread."""
        if len(self.layers) == 1:
            return {}
        first = dict.fromkeys(("words", "positions", "norm"), ("embedding", 0))
        return first | spread(self.layers) | {"dense": ("head", 0)}


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
        """Return images, in training also labels."""
        images = torch.zeros(self.batch, 3, 224, 224, dtype=torch.half)
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

    workload: Resnet | Transformer | Vit | Cnn
    options: Frozen
    packing: float = 1.0

    @property
    def samples(self) -> float:
        """Samples of an update, or of a call."""
        return self.workload.batch * self.packing * self.options.accumulation * self.options.replicas * (
            self.options.iterations
        )


def _resnet(target: str, replicas: int, batch: int, accumulation: int, memory: float = 0.15) -> Run:
    """ResNet-50 on one IPU a replica; images are bytes, as the public example and V027 have them."""
    return Run(Resnet(batch, trains=True, bytes_in=True), Frozen(
        target, "half", (memory,), accumulation=accumulation, replicas=replicas, recompute=("stem", *RESNET_BLOCKS),
        stochastic=True,
    ))


LARGE, BASE = (1024, 16), (768, 12)
MEMORY_LARGE = (0.15, 0.25, 0.25, 0.25)
PACKED = {128: 1.17, 384: 1.7, 512: 2.0}
"""Sequences in a pack, by its length, in the public examples' configurations."""


def _bert(
    target: str, length: int, batch: int, accumulation: int, *, replicas: int = 4, size: tuple[int, int] = LARGE,
    layers: tuple[int, ...] = (3, 7, 7, 7), memory: tuple[float, ...] = MEMORY_LARGE, packed: bool = False,
    narrow: bool = False,
) -> Run:
    """BERT in a pipeline, with states of the optimiser off the chip."""
    workload = Transformer(*size, length, batch, layers, trains=True, narrow=narrow)
    options = Frozen(
        target, "half", memory, accumulation=accumulation, replicas=replicas, off_chip=True,
        recompute=layer_by_layer(layers), stochastic=True,
    )
    return Run(workload, options, PACKED[length] if packed else 1.0)


def _eight_ipus(accumulation: int, replicas: int) -> Run:
    """BERT-Large over eight IPUs; of its activations floats of 8 bits are kept, as the rows state."""
    return _bert(
        "bow", 512, 3, accumulation, replicas=replicas, layers=(3,) * 8, memory=(0.3,) * 8, packed=True, narrow=True,
    )


def _vit(batch: int, accumulation: int) -> Run:
    return Run(Vit(batch, (3, 3, 3, 3), trains=True), Frozen(
        "bow", "half", (0.3,) * 4, accumulation=accumulation, replicas=4, off_chip=True,
        recompute=layer_by_layer((3, 3, 3, 3)), stochastic=True,
    ))


def _card(workload: Resnet | Transformer | Vit, *, memory: float | None = None, overlap: bool = False) -> Run:
    """Inference on a C600, many batches a call; halves have half partials."""
    is_half = getattr(workload, "dtype", torch.half) == torch.half
    return Run(workload, Frozen(
        "c600", "half" if is_half else "float", () if memory is None else (memory,), iterations=BATCHES_A_CALL,
        overlap=overlap, io_tiles=IO_TILES if overlap else 0,
    ))


def _images(batch: int, dtype: torch.dtype = torch.half, *, overlap: bool = True, bytes_in: bool = False) -> Run:
    return _card(Resnet(batch, trains=False, dtype=dtype, bytes_in=bytes_in), overlap=overlap)


def _answers(batch: int, length: int, dtype: torch.dtype = torch.half, memory: float | None = None) -> Run:
    return _card(Transformer(*BASE, length, batch, (12,), trains=False, dtype=dtype), memory=memory)


RUNS: dict[str, Run] = {
    "V001": _resnet("mk2", 16, 20, 6),
    "V003": _resnet("mk2", 16, 20, 10),
    "V004": _resnet("mk2", 64, 20, 3),
    "V007": _resnet("bow", 16, 22, 10),
    "V010": _resnet("bow-pod256", 256, 20, 2),  # 10,240 samples of 256 replicas; micro-batch as V023
    "V023": _resnet("bow", 16, 20, 6),  # 1,920 samples as V001
    "V026": _resnet("bow", 16, 22, 10),  # 3,520 samples as V007
    "V027": _resnet("bow", 16, 18, 57, 0.16),
    "V011": _bert("mk2", 512, 2, 192, memory=(0.2, 0.2, 0.25, 0.25), packed=True),
    "V013": _bert("mk2", 512, 2, 192, memory=(0.2, 0.2, 0.25, 0.25), packed=True),
    # 6,144 sequences in packs of two, of 96 micro-batches of 32 replicas: one pack in each.
    "V015": _bert("pod128", 512, 1, 96, replicas=32, memory=(0.2, 0.2, 0.25, 0.25), packed=True),
    "V016": _eight_ipus(256, 2),
    "V017": _eight_ipus(96, 8),
    "V020": _eight_ipus(256, 2),
    "V051": _bert("bow", 128, 8, 2048),  # micro-batch and split as V063
    "V054": _bert("bow", 128, 8, 520, replicas=16),
    "V055": _bert("bow", 384, 2, 2048),  # micro-batch as V067
    "V059": _bert("bow", 128, 8, 1712, packed=True),
    "V061": _bert("bow", 128, 8, 2040),
    "V062": _bert("bow", 128, 8, 520, replicas=16),
    "V063": _bert("bow", 128, 8, 1752, packed=True),
    "V065": _bert("bow", 512, 2, 1200, packed=True),
    "V067": _bert("bow", 512, 2, 1024, packed=True),
    "V073": _bert("bow", 128, 32, 512, size=BASE, layers=(0, 4, 4, 4), memory=(0.25,) * 4),
    "V074": _bert("bow", 512, 8, 512, size=BASE, layers=(0, 4, 4, 4), memory=(0.25,) * 4),
    "V039": _vit(16, 1024),  # 65,536 samples of four replicas; 17 of V042 do not divide them
    "V042": _vit(17, 30),
    "V085": Run(Cnn(16), Frozen("mk2")),
    "V088": Run(Cnn(16), Frozen("mk2", replicas=2)),
    **{name: _images(batch) for name, batch in (("V093", 1), ("V095", 4), ("V097", 16), ("V099", 64), ("V101", 96),
                                                ("V174", 4))},
    **{name: _images(batch, overlap=False) for name, batch in (("V103", 2), ("V105", 8), ("V107", 32), ("V109", 90),
                                                               ("V110", 96))},
    **{name: _images(batch, torch.float) for name, batch in (("V111", 1), ("V112", 2), ("V115", 16), ("V117", 64))},
    "V130": _images(80, bytes_in=True),
    "V132": _answers(1, 256, torch.float),
    "V134": _answers(1, 256),
    "V136": _answers(4, 256),
    "V138": _answers(16, 256),
    "V145": _answers(4, 256, torch.float),
    "V148": _answers(16, 128, memory=0.4),
    "V153": _card(Vit(8, (12,), trains=False), memory=1.0),
}
"""What rows ran, by their numbers."""

ON_DEVICE = frozenset({"V085", "V103", "V105", "V107", "V109", "V110"})
"""Rows whose inputs are made on the device: the host's streams do not count."""

WHY_NOT: dict[str, str] = {
    "FP8": "no workload with torchipu.fp8 is written yet",
    "fp8": "no workload with torchipu.fp8 is written yet",
    "SchNet": "nodes and pairs of a pack are not stated",
    "HydroNet": "nodes and pairs of a pack are not stated",
    "packed": "how many tokens a pack has is not stated",
    "EfficientNet": "no workload of this model is written yet",
    "ResNeXt": "no workload of this model is written yet",
    "UNet": "how the network lies on its four IPUs is not stated",
    "DINO": "student, teacher and crops: no workload is written yet",
    "Swin": "no workload of this model is written yet",
    "DALL-E": "its batch matches no published configuration",
    "press figure": "no batch is stated",
    "Conformer": "its configuration is not stated",
    "phase 2 SL384 TF1": "its micro-batch is not stated",
    "SQuAD fine-tune": "its micro-batch is not stated",
    "MNIST": "the script's loader on the host bounds it",
    "CLIP": "which of CLIP's encoders it is, is not stated",
    "Roformer": "which of its sizes it is, is not stated; the rate of batch 356 is beyond the peak for the base one",
    "Wide&Deep": "the host's look-ups bound it; no workload is written yet",
    "VideoBERT": "no workload of this model is written yet",
}


def _why_not(row: Row) -> NotExpressed:
    text = f"{row.line.text('workload')} {row.line.text('config')}"
    return NotExpressed(next((why for part, why in WHY_NOT.items() if part in text), "no workload is written yet"))


# --------------------------------------------------------------------------- rows
def _outcome(row: Row) -> Outcome | NotExpressed:
    run = RUNS.get(row.line.text("id"))
    return _why_not(row) if run is None else outcome_of(run.workload, run.options)


def throughput(row: Row) -> Prediction | NotExpressed:
    """Predict samples a second; the split is of cycles."""
    outcome = _outcome(row)
    if isinstance(outcome, NotExpressed):
        return outcome
    name = row.line.text("id")
    run = RUNS[name]
    cycles = outcome.device_cycles if name in ON_DEVICE else outcome.cycles
    split = outcome.device_split if name in ON_DEVICE else {k: float(v) for k, v in outcome.split.items() if v}
    return Prediction(run.samples * lookup_target(run.options.target).clock_hz / cycles, split)


def fits(row: Row) -> Prediction | NotExpressed:
    """Predict whether a program fits; the split is of bytes."""
    is_published = "id" in row.line.values
    outcome = _outcome(row) if is_published else stencils.outcome_of_row(row)
    if isinstance(outcome, NotExpressed):
        return outcome
    return Prediction(
        float(not outcome.overflow), {name: float(count) for name, count in outcome.bytes_by_category.items() if count},
    )


def rates(*kinds: str) -> tuple[Row, ...]:
    """Return the rows of some kinds, in whatever they measure."""
    return tuple(row_of(line) for line in lines_of_kinds(*kinds))


SQUAD = (
    "PopRT's table does not say what of the ONNX model was fused, nor which memory proportion was set. The model gives "
    "the encoder's products and attention alone; "
)
ONE = SQUAD + "about as much time is missing at batch 1 in float as in half, and over twice that at batch 4"
STATED: dict[str, str] = {
    "V132": ONE,
    "V134": ONE,
    "V136": SQUAD + "neither a time a batch nor one a sample gives the rows of 1, 4 and 16 at once",
    "V138": SQUAD + "four times the batch of V136 takes 8.7 times as long. Products in parts come to that at a memory "
    "proportion of 0.015 alone, which makes V132 1.7 times slower than measured, and V145 of the same table, which ran "
    "out of memory, would have needed less of it",
}
"""Why rows of inference are off, by their numbers.

What memory proportions from 0.6 down to 0.015 give was looked at for all.
"""


BLOCKS = (
    "timed by blocks of samples, 175,000 sequences in V011: some {seconds} s more in each would explain this row and "
    "{row}, the same network on 16 IPUs, at once; what the host does between blocks is not stated"
)
FRAMEWORK = (
    "{row} ran the same network, length and machine under another framework {factor} times as fast; what a framework "
    "adds to the program is not stated"
)
STATED_OF_TRAINING: dict[str, str] = {
    "V010": "an epoch of it takes 3.1 s, and half a second more than the model says; that much would be 2 % of V007, "
    "whose epochs on 16 IPUs take 30 s: what the host does between epochs is not stated",
    "V015": BLOCKS.format(row="V013", seconds=3),
    "V017": BLOCKS.format(row="V016", seconds=6),
    "V039": "V042, the same network, spends a sixth of an update on filling and draining its pipeline, V039 next to "
    "nothing; yet V042 is only 1.04 times slower: pretraining has more to do, in its head or loader, than is stated",
    "V067": FRAMEWORK.format(row="V065", factor=1.08),
    "V088": "the host's loader bounds it: V085, the same model on data that are made up, runs 3.1 times as fast on "
    "half the IPUs",
    "V061": FRAMEWORK.format(row="V051", factor=1.14),
}
"""Why rows of training are off, by their numbers."""


def profile(row: Row) -> NotExpressed:
    """Say why a row of a profile has no prediction."""
    return NotExpressed(PROFILE_REASONS[row.line.text("kind")])


PROFILE_REASONS = {
    "memory": "the total of one category over all tiles, or one IPU of a split: a workload is not written yet",
    "model-silicon": "a model with weights of 8 bits: a workload is not written yet",
    "latency": "of queues of the host, not of the device",
}


def decisions() -> tuple[Row, ...]:
    """Return which programs fitted: those that ran out of memory, and those that ran."""
    published = [
        row_of(line, float(line.text("value") != "OOM")) for line in lines_of_kinds("fit", *TRAINING, *INFERENCE)
    ]
    return (*published, *stencils.decisions())


KINDS = (
    Kind("train", "training, 1 to 256 IPUs", "samples/s", lambda: rates(*TRAINING), throughput, is_quick=False,
         stated=STATED_OF_TRAINING),
    Kind("infer", "inference on a C600", "samples/s", lambda: rates(*INFERENCE), throughput, is_quick=False,
         stated=STATED),
    Kind("fits", "fits into memory or not", "yes", decisions, fits, is_decision=True, is_quick=False),
    Kind("profile", "memory, latency, profiles", "as stated", lambda: rates(*PROFILE_REASONS), profile, is_quick=False),
)
