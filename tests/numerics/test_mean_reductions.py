"""When the mean of gradients is divided: the same mean whichever way, and in half what each way can hold."""

from __future__ import annotations

from typing import Any

import poptorch
import pytest
import torch
from torch import nn

from torchipu import Options, TrainStep

STRATEGIES = ("post", "running", "post_and_loss")


class Scaled(nn.Module):
    """The mean of a weight times its input: the gradient of the weight is the mean of the input."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 3).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().mean()


def data(count: int) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(count))


def trained(**options: Any) -> tuple[torch.Tensor, nn.Module]:
    """Train three updates of eight micro-batches of two; return losses and the model."""
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = TrainStep(model, optimizer, Options(device_iterations=3, output_mode="all", **options))
    return step(data(48)), model


@pytest.fixture(scope="module")
def eager() -> nn.Module:
    model = Scaled().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in data(48).double().split(16):
        optimizer.zero_grad()
        for run in batch.split(2):
            (model(run) / 8).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("options", [
    {"gradient_accumulation": 8}, {"gradient_accumulation": 2, "replicas": 4}, {"replicas": 8},
    {"gradient_accumulation": 8, "loss_scaling": 1024.0},
], ids=str)
def test_every_strategy_gives_the_mean(strategy: str, options: dict[str, Any], eager: nn.Module) -> None:
    losses, model = trained(mean_reduction=strategy, **options)
    wanted = dict(eager.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.double(), wanted[name], rtol=1e-5, atol=1e-6)
    plain, _ = trained(**options)
    torch.testing.assert_close(losses, plain, rtol=1e-5, atol=0, msg="the loss that is returned is never divided")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sum_is_divided_by_no_strategy(strategy: str) -> None:
    options = {"gradient_accumulation": 4, "replicas": 2, "accumulation_reduction": "sum"}
    _, model = trained(mean_reduction=strategy, **options)
    _, plain = trained(**options)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


def test_a_divided_loss_begins_the_backward_from_its_share() -> None:
    options = Options(mean_reduction="post_and_loss", gradient_accumulation=8, loss_scaling=64.0, replicas=2)
    assert options.backward_scale == 8.0
    assert Options(gradient_accumulation=8, loss_scaling=64.0).backward_scale == 64.0


@pytest.mark.parametrize("strategy", list(poptorch.MeanReductionStrategy))
def test_poptorch_has_the_same_strategies(strategy: poptorch.MeanReductionStrategy) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scaled()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.inner(x), "none")

    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    model = Model()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, use_combined_accum=False)
    poptorch.trainingModel(model, options, optimizer)(data(16))
    wanted = Scaled()
    for run in data(16).split(2):
        (wanted(run) / 8).backward()
    torch.optim.SGD(wanted.parameters(), lr=0.1).step()
    torch.testing.assert_close(model.inner.layer.weight, wanted.layer.weight, rtol=1e-5, atol=1e-6)
