"""Whole programs whose profile is published: cycles of a run, and the fullest tile."""

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
from torchipu.score.programs import Frozen, outcome_of
from torchipu.score.published import lines_of_kinds, row_of
from torchipu.score.rows import Row

REASONS = {
    "memory": "the total of one category over all tiles, or one IPU of a split: a workload is not written yet",
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


def profiled(row: Row) -> Prediction | NotExpressed:
    """Predict a run's cycles, the bytes of the fullest tile, or its exchange code; of others say why not."""
    line = row.line
    found = re.search(
        r"(whole inference|tile memory max|exchange code mean), (FP8|FP16|fp16) weights", line.text("metric"),
    )
    batch = re.fullmatch(r"batch (\d+)", line.text("config"))
    if found is None or batch is None or not line.text("workload").startswith(SIGLIP):
        return NotExpressed(REASONS[line.text("kind")])
    outcome = outcome_of(Siglip(int(batch[1]), found[2] == "FP8"), Frozen("c600", "half"))
    if found[1] == "whole inference":
        return Prediction(outcome.device_cycles, outcome.device_split)
    by_name = {name: float(count) for name, count in outcome.bytes_by_category.items() if count}
    if found[1] == "exchange code mean":  # nearly all tiles have as much of it
        return Prediction(by_name["exchange code"], {"exchange code": by_name["exchange code"]})
    return Prediction(outcome.tile_bytes, by_name)


def rows() -> tuple[Row, ...]:
    """Return rows of profiles, and of latencies."""
    return tuple(row_of(line) for line in lines_of_kinds(*REASONS))


KINDS = (
    Kind("profile", "memory, latency, profiles", "as stated", rows, profiled, is_quick=False, stated={
        "V206": "which copies its 16 heads of 72 channels take, that fill no groups of 16, is not published: of the "
        "compute sets whose cycles are, products and softmax, the model has all within 11 %",
    }),
)
