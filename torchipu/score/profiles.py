"""Whole programs whose profile is published: cycles of a run, and what fills tiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from torchipu import fp8
from torchipu.score.kinds import Kind, NotExpressed, Prediction
from torchipu.score.models import Layer
from torchipu.score.programs import Frozen, Workload, memory_of, outcome_of
from torchipu.score.published import lines_of_kinds, row_of
from torchipu.score.rows import Line, Row
from torchipu.score.runs import LARGE, Transformer

REASONS = {
    "memory": "the sizes, the batch or the optimiser of the model are not stated",
    "model-silicon": "no workload of this model is written yet",
    "latency": "of queues of the host, not of the device",
}
SIGLIP = "SigLIP So400m/14"
DEPTH, WIDTH, HEADS, HIDDEN = 27, 1152, 16, 4304
PATCH, SIDE = 14, 27
"""Of a patch, and of the image in patches: 729 tokens."""


class StoredLinear(nn.Module):
    """A linear layer of halves, whose weight is stored in floats of 8 bits and widened before each product."""

    code: torch.Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("code", torch.zeros(outputs, inputs, dtype=torch.uint8))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., outputs]`."""
        return F.linear(x, fp8.dequantise(self.code), self.bias)


class SiglipEncoder(nn.Module):
    """The image encoder of SigLIP (Zhai et al. 2023), shape-optimised: images `[N, 3, 378, 378]` to `[N, 729, 1152]`.

    Args:
        linear: Its linear layers.
    """

    def __init__(self, linear: type[nn.Module]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.positions = nn.Parameter(torch.zeros(SIDE * SIDE, WIDTH))
        self.layers = nn.ModuleList(
            Layer(WIDTH, HEADS, 0.0, hidden=HIDDEN, linear=linear) for _ in range(DEPTH)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return what stands for each patch."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        encoded: torch.Tensor = self.norm(x)
        return encoded


@dataclass(frozen=True)
class Siglip:
    """The encoder on one IPU."""

    batch: int
    narrow: bool

    def model(self) -> nn.Module:
        """Return the model."""
        return SiglipEncoder(StoredLinear if self.narrow else nn.Linear).half().eval()

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return images."""
        return (torch.zeros(self.batch, 3, PATCH * SIDE, PATCH * SIDE, dtype=torch.half),)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """None: inference."""
        return None

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """None: one IPU."""
        return {}


MEMORY = {
    "tile memory max": lambda held: held.filled.max(),
    "tile memory mean": lambda held: held.occupied.mean(),
    "exchange code mean": lambda held: held.bytes_by_category["exchange code"].mean(),
    "vertex state total": lambda held: held.bytes_by_category["vertex state"].sum() / 1e6,
    "vertex code total": lambda held: held.bytes_by_category["code"].sum() / 1e6,
    "IPU0 total": lambda held: held.occupied.sum() / 1e6,
    "IPU0 max tile": lambda held: held.filled.max(),
}
"""What rows say of the tiles of an IPU, in bytes or in millions of them."""


def profiled(row: Row) -> Prediction | NotExpressed:
    """Predict a run's cycles, or what rows say of tiles; of others say why not."""
    line = row.line
    found = _siglip(line) if line.text("workload").startswith(SIGLIP) else _bert(line)
    if found is None:
        return NotExpressed(REASONS[line.text("kind")])
    metric, workload, options = found
    if metric == "whole inference":
        outcome = outcome_of(workload, options)
        return Prediction(outcome.device_cycles, outcome.device_split)
    held = memory_of(workload, options)[0]
    by_name = {name: float(count.sum()) for name, count in held.bytes_by_category.items() if count.any()}
    return Prediction(float(MEMORY[metric](held)), by_name)


def _siglip(line: Line) -> tuple[str, Workload, Frozen] | None:
    found = re.search(rf"(whole inference|{'|'.join(MEMORY)}), (FP8|FP16|fp16) weights", line.text("metric"))
    batch = re.fullmatch(r"batch (\d+)", line.text("config"))
    if found is None or batch is None:
        return None
    return found[1], Siglip(int(batch[1]), found[2] == "FP8"), Frozen("c600", "half")


def _bert(line: Line) -> tuple[str, Workload, Frozen] | None:
    """Return BERT-Large for SQuAD at a batch of 1, on one IPU, or as many layers on each of two.

    Nothing is outlined: whole programs have as much vertex state as their layers together, which the vendor's tool
    tells apart so; ``ipu_hardware.md`` 3.6.
    """
    found = re.fullmatch(rf"BERT-Large SQuAD inf S128\b.*: ({'|'.join(MEMORY)})", line.text("workload"))
    if found is None:
        return None
    layers = (12, 12) if line.number_in("n_ipu") == 2 else (24,)
    return found[1], Transformer(*LARGE, 128, 1, layers, trains=False, answers=True), Frozen("mk2", outlining=False)


def rows() -> tuple[Row, ...]:
    """Return rows of profiles, and of latencies."""
    return tuple(row_of(line) for line in lines_of_kinds(*REASONS))


KINDS = (
    Kind("profile", "memory, latency, profiles", "as stated", rows, profiled, is_quick=False, stated={
        "V206": "which copies its 16 heads of 72 channels take, that fill no groups of 16, is not published: of the "
        "compute sets whose cycles are, products and softmax, the model has all within 11 %",
    }),
)
