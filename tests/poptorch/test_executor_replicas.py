"""Replicas of a wrapped model: the order of their batches and results, their gradients and their buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, twin_of
from torchipu.poptorch import CommGroupType, OutputMode, ReductionType


def indexed(settings: poptorch.Options, count: int) -> list[float]:
    """Return the numbers of the rows that come back of a batch of numbered rows."""
    step = poptorch.inferenceModel(lambda x: x * 1, settings)
    return step(torch.arange(float(count)).unsqueeze(1)).flatten().tolist()


@pytest.mark.parametrize(("mode", "more", "rows"), [
    (OutputMode.All, {}, [0, 1, 2, 3, 4, 5, 6, 7]), (OutputMode.Final, {}, [6, 7]),
    (OutputMode.EveryN, {"output_return_period": 2}, [2, 3, 6, 7]), (OutputMode.Sum, {}, [12, 16]),
])
def test_batches_go_round_the_replicas_and_come_back_in_that_order(mode: Any, more: Any, rows: list[int]) -> None:
    assert indexed(options(4, 1, mode, **more).replicationFactor(2), 8) == rows


@pytest.mark.parametrize(("mode", "shapes"), [
    (OutputMode.Final, [(4, 3), (2,)]), (OutputMode.All, [(48, 3), (24,)]), (OutputMode.Sum, [(4, 3), (2,)]),
])
def test_shapes_of_the_contract(mode: OutputMode, shapes: list[Any]) -> None:
    model = Classifier()
    step = poptorch.trainingModel(model, options(3, 4, mode).replicationFactor(2), sgd(model))
    assert [tuple(value.shape) for value in step(*batch(48))] == shapes


@pytest.mark.parametrize("reduction", [ReductionType.Mean, ReductionType.Sum])
def test_replicated_training_equals_accumulation_over_all_micro_batches(reduction: ReductionType) -> None:
    model = Classifier()
    twin = twin_of(model)
    settings = options(2, 2).replicationFactor(2)
    settings.Training.accumulationAndReplicationReductionType(reduction)
    step = poptorch.trainingModel(model, settings, sgd(model, momentum=0.9))
    x, labels = batch(32)
    step(x, labels)
    mean = reduction is ReductionType.Mean
    eager_training(twin, sgd(twin, momentum=0.9), (x, labels), updates=2, micro_batches=4, mean=mean)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


def test_replicas_of_a_group_read_the_same_inputs() -> None:
    for kind, rows in ((CommGroupType.Consecutive, [0, 0, 1, 1]), (CommGroupType.Orthogonal, [0, 1, 0, 1])):
        settings = options().replicationFactor(4).inputReplicaGrouping(2, kind)
        assert indexed(settings, 2) == rows


class Counting(nn.Module):
    """Adds the mean of its input to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("constant", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.mean(0)
        return x + self.constant


def test_buffers_that_replicas_write_are_their_own_and_come_back_stacked() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(poptorch.Error, match="PopTorch does not support broadcasting buffers"):
        poptorch.inferenceModel(Counting(), options().replicationFactor(2))(x)
    model = Counting()
    step = poptorch.inferenceModel(model, options().replicationFactor(2).broadcastBuffers(False))
    step(x)
    assert torch.equal(step(x), x + 1)
    step.copyWeightsToHost()
    assert torch.equal(model.total, 2 * x)
    assert torch.equal(model.constant, torch.ones(2))
    step.copyWeightsToDevice()
    step(x)
    step.copyWeightsToHost()
    assert torch.equal(model.total, 3 * x)
