"""Ops of PopTorch within training on two IPUs: each micro-batch computed, printed and updated once, as on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import eager_training, options, sgd
from torchipu import poptorch
from torchipu.poptorch.operators import custom_ops


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = dict(custom_ops._OPS)
    poptorch.registerCustomOp(
        "Cube", "test.ops", 1, lambda inputs, _: inputs[0] ** 3,
        lambda gradients, inputs, outputs, _: 3 * gradients[0] * inputs[0] ** 2, on_host=True,
    )
    yield
    custom_ops._OPS.clear()
    custom_ops._OPS.update(before)


class Staged(nn.Module):
    """Two stages full of hints."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.weight = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        poptorch.Block.start("a", ipu_id=0)
        with poptorch.NameScope("stage"):
            x = poptorch.ipu_print_tensor(self.first(x).tanh(), "first")
        x = poptorch.recomputationCheckpoint(x).exp().sin()
        x = poptorch.nop(poptorch.custom_op([x], "Cube", "test.ops", 1, [x])[0])
        poptorch.Block.start("b", ipu_id=1)
        x = poptorch.serializedMatMul(x, self.weight, poptorch.MatMulSerializationMode.ReducingDim, 2)
        x = self.second(x)
        return x, poptorch.identity_loss((x - target).square(), "mean")


@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
@pytest.mark.parametrize("replicas", [1, 2])
def test_stages_train_as_on_the_cpu(strategy: Any, replicas: int, capfd: pytest.CaptureFixture[str]) -> None:
    model, twin = Staged(), Staged()
    settings = options(2, 4, poptorch.OutputMode.Final)
    settings.replicationFactor(replicas)
    settings.setExecutionStrategy(strategy("a", "b"))
    inputs = torch.randn(16 * replicas, 4), torch.randn(16 * replicas, 4)
    step = poptorch.trainingModel(model, settings, sgd(model))
    step(*inputs)
    printed = capfd.readouterr().err
    assert printed.count("first: ") == printed.count("first_gradient: ") == 8 * replicas
    # The mean of the gradients does not ask which replica computed which.
    eager_training(twin, sgd(twin), inputs, updates=2, micro_batches=4 * replicas)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)
