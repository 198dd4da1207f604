"""Models over several IPUs: the same values as on one, places in the program's text, and pipelines that cannot fill."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, twin_of


def placed_ops(step: poptorch.PoplarExecutor) -> dict[str, set[str]]:
    """Return the IPUs of the products of each layer."""
    places: dict[str, set[str]] = {}
    for op in json.loads(step._debugGetPopartIR())["maingraph"]:
        if op["type"] == "MatMul":
            places.setdefault(op["name"].split("/")[0], set()).add(op["attributes"]["__ipu_number"])
    return places


def split(model: nn.Module) -> nn.Module:
    poptorch.BeginBlock(model.body, "B0", ipu_id=0)
    poptorch.BeginBlock(model.head, "B1", ipu_id=1)
    return model


@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
def test_training_over_two_ipus_equals_eager_training(strategy: Any) -> None:
    model = Classifier()
    twin = twin_of(model)
    settings = options(2, 4, poptorch.OutputMode.All).setExecutionStrategy(strategy("B0", "B1"))
    step = poptorch.trainingModel(split(model), settings, sgd(model))
    x, labels = batch(16)
    losses = step(x, labels)[1]
    expected = eager_training(twin, sgd(twin), (x, labels), updates=2, micro_batches=4)
    torch.testing.assert_close(losses, torch.stack([loss for _, loss in expected]))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert placed_ops(step) == {"body": {"0"}, "head": {"1"}}


def test_a_pipeline_that_a_call_cannot_fill_is_refused() -> None:
    model = split(Classifier())
    step = poptorch.trainingModel(model, options(1, 2), sgd(model))
    with pytest.raises(
        poptorch.Error, match="gradientAccumulation must be greater than or equal to the number of pipeline stages",
    ):
        step(*batch(4))
    with pytest.raises(
        poptorch.Error, match="deviceIterations must be greater than or equal to the number of pipeline stages",
    ):
        poptorch.inferenceModel(model, options(1))(batch(4)[0])
    sharded = options(1).setExecutionStrategy(poptorch.ShardedExecution("B0", "B1"))
    torch.testing.assert_close(
        poptorch.inferenceModel(model, sharded)(batch(4)[0]), twin_of(Classifier())(batch(4)[0]).detach(),
    )


def test_an_op_outside_of_every_block_is_refused_and_leaves_nothing_active() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("A", ipu_id=0):
            x = x * 2
        return x + 1

    with pytest.raises(poptorch.Error, match="No active Block, all the ops must belong to a Block") as raised:
        poptorch.inferenceModel(forward)(torch.ones(2))
    for words in ("aten.add", "after the end of a Block", f"{__file__}:", "return x + 1", "poptorch.Block.start"):
        assert words in str(raised.value)
    assert torch.equal(poptorch.inferenceModel(lambda x: x + 1)(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(forward(torch.ones(2)), torch.full((2,), 3.0))


def test_three_ipus_are_refused_unless_they_may_be_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        for ipu in range(3):
            with poptorch.Block(f"B{ipu}", ipu_id=ipu):
                x = x + ipu
        return x

    def sharded() -> poptorch.Options:
        return options().setExecutionStrategy(poptorch.ShardedExecution("B0", "B1", "B2"))

    x = torch.ones(2)
    refused = poptorch.inferenceModel(forward, sharded())
    with pytest.raises(poptorch.Error, match="The model specifies the use of 3 IPUs, however PopTorch must reserve a"):
        refused(x)
    assert not refused.isCompiled()
    for settings in (sharded().autoRoundNumIPUs(True), sharded().useIpuModel(True)):
        assert torch.equal(poptorch.inferenceModel(forward, settings)(x), x + 3)
    with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(96\)\. Experiments that need more than 64"):
        poptorch.inferenceModel(forward, sharded().replicationFactor(32).autoRoundNumIPUs(True))(torch.ones(32))
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    assert torch.equal(poptorch.inferenceModel(forward, sharded())(x), x + 3)


@pytest.mark.parametrize(("function", "value"), [
    (lambda x: x / 0, 1.0), (lambda x: x * 0, float("inf")), (torch.sqrt, -1.0), (lambda x: x > 0, float("nan")),
    (torch.exp, 3800.0),
])
def test_floating_point_exceptions_are_errors_only_if_enabled(function: Any, value: float) -> None:
    for enabled in (False, True):
        settings = options()
        settings.Precision.enableFloatingPointExceptions(enabled)
        step = poptorch.inferenceModel(function, settings)
        if enabled:
            with pytest.raises(poptorch.Error, match="floating-point exception"):
                step(torch.tensor([value]))
        else:
            step(torch.tensor([value]))
