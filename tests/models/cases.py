"""The four models that the emulator must train, small, with data, optimisers and eager losses."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from torchipu import BeginBlock, Options, TrainStep
from workloads import MLP, DemoNet, ResNet18, TransformerClassifier, WithLoss

NUM_STEPS = 20
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A classifier and what it is trained with.

    Attributes:
        model: Makes the model.
        inputs: Makes inputs for a number of samples.
        batch: Samples of a micro-batch.
        rates: Learning rate of each optimiser.
        starts: Names of the modules at which the blocks on IPUs 0 to 3 begin.
    """

    model: Callable[[], nn.Module]
    inputs: Callable[[int], torch.Tensor]
    batch: int
    rates: dict[str, float]
    starts: tuple[str, str, str, str]

    def new(self) -> nn.Module:
        """Return the model, with the same weights each time."""
        torch.manual_seed(0)
        return self.model()

    def in_blocks(self) -> nn.Module:
        """Return the model as four blocks on four IPUs."""
        model = self.new()
        for ipu, name in enumerate(self.starts):
            BeginBlock(model.get_submodule(name), name, ipu)
        return model

    def batches(self, count: int = NUM_STEPS, size: int | None = None) -> list[Batch]:
        """Return batches of inputs and labels, the same each time."""
        torch.manual_seed(1)
        size = size or self.batch
        return [(self.inputs(size), torch.randint(10, (size,))) for _ in range(count)]


CASES = {
    "demo-cnn": Case(
        DemoNet, lambda n: torch.randn(n, 1, 28, 28), 8, {"sgd": 1e-2, "adamw": 1e-3},
        ("conv1", "conv2", "linear1", "linear2"),
    ),
    "mlp": Case(
        lambda: MLP(64), lambda n: torch.randn(n, 784), 8, {"sgd": 1e-2, "adamw": 1e-3},
        ("layers.0", "layers.1", "layers.2", "layers.4"),
    ),
    "transformer": Case(
        lambda: TransformerClassifier(100, 16, 32, 4, dropout=0.0), lambda n: torch.randint(100, (n, 16)), 4,
        {"sgd": 1e-2, "adamw": 1e-3}, ("words", "layers.0", "layers.1", "head"),
    ),
    # Batch normalisation over few values multiplies rounding errors, so these rates are far below those of practice,
    # at which eager float32 itself is 4 to 17 % off float64 after 20 steps; test_training.py compares that drift too.
    "resnet18": Case(
        lambda: ResNet18(10), lambda n: torch.randn(n, 3, 32, 32), 16, {"sgd": 1e-5, "adamw": 1e-6},
        ("stem", "blocks.0", "blocks.3", "blocks.6"),
    ),
}


def make_optimiser(kind: str, case: Case, model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD with Nesterov momentum and weight decay, or AdamW."""
    if kind == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=case.rates["sgd"], momentum=0.9, nesterov=True, weight_decay=1e-3,
        )
    return torch.optim.AdamW(model.parameters(), lr=case.rates["adamw"])


def train(
    case: Case, optimiser_kind: str, compile_model: Callable[[nn.Module], Callable[..., torch.Tensor]],
    dtype: torch.dtype = torch.float32, steps: int = NUM_STEPS,
) -> list[float]:
    """Return the losses of a training loop as users write it."""
    model = copy.deepcopy(case.new()).to(dtype)
    called = compile_model(model)
    optimiser = make_optimiser(optimiser_kind, case, model)
    losses = []
    for x, y in case.batches(steps):
        optimiser.zero_grad()
        loss = F.cross_entropy(called(x.to(dtype) if x.is_floating_point() else x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@functools.cache
def eager_losses(name: str, optimiser_kind: str, dtype: torch.dtype = torch.float32) -> tuple[float, ...]:
    """Return the losses of eager training."""
    return tuple(train(CASES[name], optimiser_kind, lambda model: model, dtype))


def train_step(case: Case, optimiser_kind: str, model: nn.Module, **options: object) -> TrainStep:
    """Return a step that trains a model; some of the models do not fit the tiles of one IPU."""
    given = {"allow_out_of_memory": True, **options}
    return TrainStep(WithLoss(model), make_optimiser(optimiser_kind, case, model), Options(**given))


def largest_difference(ours: list[float], theirs: tuple[float, ...]) -> float:
    """Return the largest relative difference of two lists of losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
