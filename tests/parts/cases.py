"""Trainings and inferences whose results do not depend on how many processes run the pipeline."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchipu

SIZE = 24


class Stack(nn.Module):
    """A residual classifier in blocks on IPUs of their own; returns logits ``[N, 5]`` and the loss."""

    def __init__(self, blocks: int = 4, *, dropout: float = 0.0, norm: str = "") -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            torchipu.BeginBlock(_layer(dropout, norm), f"B{number}", ipu_id=number) for number in range(blocks)
        )
        self.head = torchipu.BeginBlock(nn.Linear(SIZE, 5), "head", ipu_id=blocks - 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for block in self.blocks:
            x = x + block(x)
        found = self.head(x)
        return found, nn.functional.cross_entropy(found.float() if found.dtype is torch.half else found, y)


def _layer(dropout: float, norm: str) -> nn.Module:
    norms = {"batch": [nn.BatchNorm1d(SIZE)], "layer": [nn.LayerNorm(SIZE)]}
    drop = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(nn.Linear(SIZE, 32), nn.GELU(), *drop, nn.Linear(32, SIZE), *norms.get(norm, []))


class Images(nn.Module):
    """Convolutions whose activations and sums stand behind the borders of stages; logits ``[N, 5]`` and the loss."""

    def __init__(self) -> None:
        super().__init__()
        layers = (
            nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)),
            nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1, bias=False)),
            nn.Sequential(nn.SiLU(), nn.Conv2d(64, 96, 3, 2, 1), nn.ReLU(), nn.Conv2d(96, 96, 3, padding=1)),
            nn.Sequential(nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(96, 64, 3), nn.Flatten(), nn.Linear(64, 5)),
        )
        self.layers = nn.ModuleList(
            torchipu.BeginBlock(layer, f"B{number}", ipu_id=number) for number, layer in enumerate(layers)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.layers[0](x)
        x = x + self.layers[1](x)
        found = self.layers[3](self.layers[2](x))
        return found, nn.functional.cross_entropy(found, y)


class Inverted(nn.Module):
    """Convolutions of one pixel and of single channels, cut where values lie in blocks; logits and the loss."""

    def __init__(self) -> None:
        super().__init__()
        layers = (
            nn.Sequential(
                nn.Conv2d(16, 96, 1, bias=False), nn.BatchNorm2d(96), nn.Hardswish(),
                nn.Conv2d(96, 96, 3, padding=1, groups=96, bias=False),
            ),
            nn.Sequential(nn.BatchNorm2d(96), nn.ReLU(), nn.Conv2d(96, 64, 1, bias=False)),
            nn.Sequential(nn.BatchNorm2d(64), nn.Conv2d(64, 96, 1), nn.SiLU(), nn.Conv2d(96, 64, 1)),
            nn.Sequential(nn.AvgPool2d(12), nn.Flatten(), nn.Linear(64, 5)),
        )
        self.layers = nn.Sequential(*(
            torchipu.BeginBlock(layer, f"B{number}", ipu_id=number) for number, layer in enumerate(layers)
        ))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.layers(x)
        return found, nn.functional.cross_entropy(found, y)


def images(count: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 16, 12, 12, generator=generator), torch.randint(0, 5, (count,), generator=generator)


class Tied(nn.Module):
    """A language model whose last block reads the embedding of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torchipu.BeginBlock(nn.Embedding(40, SIZE), "embed", ipu_id=0)
        layer = nn.TransformerEncoderLayer(SIZE, 2, 32, dropout=0.1, batch_first=True)
        self.layer = torchipu.BeginBlock(layer, "layer", ipu_id=0)
        self.second = torchipu.BeginBlock(nn.LayerNorm(SIZE), "second", ipu_id=1)
        self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.second(self.layer(self.embedding(tokens), src_mask=self.mask))
        logits = x @ self.embedding.weight.T
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def samples(count: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, SIZE, generator=generator)
    return x.to(dtype), torch.randint(0, 5, (count,), generator=generator)


@dataclasses.dataclass(frozen=True)
class Case:
    """A step and its calls; one that is judged has losses that eager float64 gives too."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = lambda p: torch.optim.AdamW(p, lr=0.01)
    dtype: torch.dtype = torch.float32
    calls: int = 3
    freeze: tuple[str, ...] = ()
    mode: bool = True
    is_judged: bool = False


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def tokens() -> tuple[torch.Tensor, ...]:
    return (torch.arange(128).reshape(16, 8) % 40,)


# Each process captures whole models, which takes less where it has one IPU of them; in some it has several.
OF_TWO: dict[str, Case] = {
    "pipelined": Case(Stack, lambda: samples(32), {
        "gradient_accumulation": 8, "execution": "pipelined", "max_grad_norm": 0.1,
    }, sgd, is_judged=True),
    "iterations_clipped_and_dropped": Case(lambda: Stack(2, dropout=0.3), lambda: samples(48), {
        "gradient_accumulation": 2, "device_iterations": 3, "output_mode": "all", "max_grad_norm": 0.1, "seed": 7,
    }),
    "drawn_seed": Case(lambda: Stack(2, dropout=0.3), lambda: samples(32), {
        "gradient_accumulation": 4, "output_mode": "sum",
    }, sgd),
    "half": Case(lambda: Stack(2, norm="layer"), lambda: samples(32, torch.half), {
        "gradient_accumulation": 4, "automatic_loss_scaling": True, "loss_scaling": 2.0**15,
        "stochastic_rounding": True, "loss_scale_bin_edge": 1e-3, "mean_reduction": "running", "seed": 3,
    }, sgd, torch.half, calls=4),
    "batch_norm": Case(lambda: Stack(2, norm="batch"), lambda: samples(64), {"gradient_accumulation": 8}, sgd,
                       is_judged=True),
    "images": Case(Images, lambda: images(16), {"gradient_accumulation": 4}, sgd, is_judged=True),
    "images_inferred": Case(Images, lambda: images(16), {"device_iterations": 4}, None, mode=False),
    "inverted": Case(Inverted, lambda: images(16), {"gradient_accumulation": 4}, sgd, is_judged=True),
    "frozen": Case(Stack, lambda: samples(32), {"gradient_accumulation": 4}, sgd, freeze=("blocks.0", "blocks.1"),
                   is_judged=True),
    "replicas": Case(lambda: Stack(norm="batch", dropout=0.2), lambda: samples(64), {
        "gradient_accumulation": 4, "replicas": 2, "seed": 5, "output_mode": "all", "broadcast_buffers": False,
    }, sgd),
    "replicas_of_one_micro_batch": Case(lambda: Stack(2), lambda: samples(16), {"replicas": 2}, sgd),
    "tied": Case(Tied, tokens, {"gradient_accumulation": 4, "seed": 2}),
    "tied_and_frozen": Case(Tied, tokens, {
        "gradient_accumulation": 4, "seed": 2, "device_iterations": 2,
    }, freeze=("embedding",)),
    "inference": Case(lambda: Stack(2, norm="batch", dropout=0.2), lambda: samples(64), {
        "device_iterations": 8, "seed": 1,
    }, None),
    "observed": Case(lambda: Stack(2), lambda: samples(32), {
        "gradient_accumulation": 4, "statistics": True, "floating_point_exceptions": True,
    }, sgd),
}
OF_THREE: dict[str, Case] = {
    "three_pipelined": Case(lambda: Stack(6), lambda: samples(48), {
        "gradient_accumulation": 12, "execution": "pipelined",
    }, is_judged=True),
    "three_dropped": Case(lambda: Stack(3, dropout=0.3, norm="batch"), lambda: samples(64), {
        "gradient_accumulation": 8, "seed": 7, "max_grad_norm": 0.1,
    }, sgd),
}
CASES = OF_TWO | OF_THREE


def made(case: Case, **more: Any) -> Any:
    """Return the step of a case."""
    torch.manual_seed(1)
    model = case.model().to(case.dtype).train(case.mode)
    for name in case.freeze:
        model.get_submodule(name).requires_grad_(False)
    options = torchipu.Options(**{"host_threads": 1, "execution": "sharded"} | case.options | more)
    if case.optimizer is None:
        return torchipu.InferenceStep(model, options)
    return torchipu.TrainStep(model, case.optimizer([p for p in model.parameters() if p.requires_grad]), options)


def run(name: str, **more: Any) -> dict[str, Any]:
    """Run a case; return digests of everything that it gives, and the losses."""
    case = CASES[name]
    step = made(case, **more)
    torch.manual_seed(4)  # from which keys are drawn
    digests, losses = [], []
    for _ in range(case.calls):
        results = step(*case.inputs())
        results = results if isinstance(results, tuple) else (results,)
        digests.append([digest(value) for value in results])
        losses.append(results[-1].double().mean().item())
    states = {key: digest(value) for key, value in step.gather().items()}
    scale = step.loss_scale if case.optimizer is not None else None
    return {"results": digests, "losses": losses, "states": states, "loss_scale": scale, "draw": torch.rand(()).item()}


def eager_losses(name: str) -> list[float]:
    """Return the losses that PyTorch gives in float64."""
    case = CASES[name]
    torch.manual_seed(1)
    model = case.model().train(case.mode).double()
    for frozen in case.freeze:
        model.get_submodule(frozen).requires_grad_(False)
    optimizer = case.optimizer and case.optimizer([p for p in model.parameters() if p.requires_grad])
    losses = []
    for _ in range(case.calls):
        pieces = case.options.get("gradient_accumulation", 1) * case.options.get("device_iterations", 1)
        micro_batches = list(zip(*(value.chunk(pieces) for value in case.inputs()), strict=True))
        found = []
        for x, y in micro_batches:
            loss = model(x.double(), y)[1]
            found.append(loss.item())
            if optimizer is not None:
                (loss / pieces).backward()
        if optimizer is None:
            losses.append(sum(found) / len(found))
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), case.options.get("max_grad_norm", float("inf")))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found[-1])
    return losses


def digest(value: torch.Tensor) -> str:
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tuple(value.shape)} {hashlib.sha256(raw).hexdigest()[:12]}"
