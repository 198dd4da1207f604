"""Parameters with one value for each group of replicas: which replica has which, training, what the host is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.poptorch.models import options
from torchipu import poptorch

CONSECUTIVE, ORTHOGONAL = poptorch.CommGroupType.Consecutive, poptorch.CommGroupType.Orthogonal
ALONE, ALL = poptorch.CommGroupType.NoGrouping, poptorch.CommGroupType.All
ONE, EVERY = poptorch.VariableRetrievalMode.OnePerGroup, poptorch.VariableRetrievalMode.AllReplicas
REPLICAS = 4
GROUPS = {
    (CONSECUTIVE, 2): [0, 0, 1, 1], (ORTHOGONAL, 2): [0, 1, 0, 1], (ALONE, 0): [0, 1, 2, 3], (CONSECUTIVE, 4): [0] * 4,
    (ORTHOGONAL, 1): [0, 1, 2, 3],
}
"""Group of each replica."""


class Weighted(nn.Module):
    """A layer whose matrix is shared by a group, and whose bias by all replicas."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(groups, 3, 4, generator=generator))
        self.bias = nn.Parameter(torch.randn(3, generator=generator))

    def forward(self, x: torch.Tensor) -> Any:
        out = F.linear(x, self.weight, self.bias)
        return out, poptorch.identity_loss(out**2, "mean")


def chosen(reduction: poptorch.ReductionType = poptorch.ReductionType.Mean, **more: Any) -> poptorch.Options:
    made = options(**more).replicationFactor(REPLICAS).outputMode(poptorch.OutputMode.All)
    made.Training.accumulationAndReplicationReductionType(reduction)
    return made


def eager(model: Weighted, x: torch.Tensor, groups: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return what replicas compute in float64, and the loss of each."""
    weight, bias = model.weight.double(), model.bias.double()
    pieces = zip(x.double().chunk(REPLICAS), groups, strict=True)
    outs = [F.linear(piece, weight[group], bias) for piece, group in pieces]
    return torch.cat(outs), [(out**2).mean() for out in outs]


@pytest.mark.parametrize("kind", GROUPS)
def test_replicas_compute_with_the_value_of_their_group(kind: Any) -> None:
    groups = GROUPS[kind]
    model = Weighted(max(groups) + 1)
    step = poptorch.inferenceModel(model, chosen())
    step.weight.replicaGrouping(*kind, ONE)
    x = torch.randn(8, 4)
    torch.testing.assert_close(step(x)[0].double(), eager(model, x, groups)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduction", [poptorch.ReductionType.Mean, poptorch.ReductionType.Sum])
@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: poptorch.optim.Adam(p, lr=0.1),
])
def test_gradients_are_reduced_within_a_group(kind: Any, reduction: Any, make: Callable[[Any], Any]) -> None:
    groups = GROUPS[kind]
    model, exact = Weighted(max(groups) + 1), Weighted(max(groups) + 1).double()
    optimizer = make(model.parameters())
    reference = make(exact.parameters())
    step = poptorch.trainingModel(model, chosen(reduction), optimizer)
    step.weight.replicaGrouping(*kind, ONE)
    for _ in range(3):
        x = torch.randn(8, 4)
        step(x)
        reference.zero_grad()
        sum(eager(exact, x, groups)[1]).backward()  # type: ignore[union-attr]
        if reduction == poptorch.ReductionType.Mean:
            exact.bias.grad /= REPLICAS
            exact.weight.grad /= groups.count(0)
        reference.step()
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-4, atol=1e-5)
    if isinstance(optimizer, poptorch.optim.Adam):
        assert optimizer.state_dict()["ipu_state"]["Accl1___weight"].shape == model.weight.shape


def test_the_host_is_given_the_value_of_every_replica_if_it_asks() -> None:
    model = Weighted(2)
    step = poptorch.trainingModel(model, chosen(), torch.optim.SGD(model.parameters(), lr=0.1))
    step.weight.replicaGrouping(ORTHOGONAL, 2, EVERY)
    step(torch.randn(8, 4))
    assert model.weight.shape == (4, 3, 4)
    assert torch.equal(model.weight[:2], model.weight[2:])
    assert not torch.equal(model.weight[0], model.weight[1])
    before = model.weight.detach().clone()
    step.copyWeightsToDevice()
    step.copyWeightsToHost()
    assert torch.equal(model.weight, before)
    step.destroy()
    step(torch.randn(8, 4))  # compiled anew from what it gave back
    step.copyWeightsToHost()
    assert model.weight.shape == (4, 3, 4)


@pytest.mark.parametrize("kind", GROUPS)
def test_values_that_nothing_writes_come_back_for_every_replica_too(kind: Any) -> None:
    groups = GROUPS[kind]
    model = Weighted(max(groups) + 1)
    before, x = model.weight.detach().clone(), torch.randn(8, 4)
    step = poptorch.inferenceModel(model, chosen())
    step.weight.replicaGrouping(*kind, EVERY)
    expected = step(x)[0]
    assert torch.equal(model.weight, before)
    step.copyWeightsToHost()
    assert torch.equal(model.weight, before[groups])
    step.copyWeightsToDevice()
    assert torch.equal(step(x)[0], expected)


def test_all_is_no_grouping_at_all() -> None:
    model = nn.Linear(4, 3)
    step = poptorch.inferenceModel(model, chosen())
    step.weight.replicaGrouping(ALL, 0, ONE)
    x = torch.randn(8, 4)
    torch.testing.assert_close(step(x), model(x))


def test_executors_of_one_model_are_grouped_apart() -> None:
    model = Weighted(4)
    alone, pairs = poptorch.inferenceModel(model, chosen()), poptorch.inferenceModel(model, options())
    alone.weight.replicaGrouping(ALONE, 0, ONE)
    assert alone(torch.randn(4, 4))[0].shape == (4, 3)
    with pytest.raises(RuntimeError, match="3D"):
        pairs(torch.randn(4, 4))


def test_grouped_values_are_in_files_and_in_the_cache(tmp_path: Path) -> None:
    x = torch.randn(8, 4)
    for _ in range(2):
        model = Weighted(2)
        step = poptorch.inferenceModel(model, chosen().enableExecutableCaching(tmp_path / "cache"))
        step.weight.replicaGrouping(CONSECUTIVE, 2, ONE)
        expected = step(x)[0]
        torch.testing.assert_close(expected.double(), eager(model, x, [0, 0, 1, 1])[0], rtol=1e-5, atol=1e-5)
    step.save(tmp_path / "model")
    assert torch.equal(poptorch.load(tmp_path / "model")(x)[0], expected)


@pytest.mark.parametrize(("kind", "size", "words"), [
    (CONSECUTIVE, 3, "groups of 3 replicas do not divide the 4 replicas"),
    (CONSECUTIVE, 1, "the first size of the parameter must be the number of groups, 4, but it is 2"),
])
def test_groups_must_fit(kind: Any, size: int, words: str) -> None:
    step = poptorch.inferenceModel(Weighted(2), chosen())
    step.weight.replicaGrouping(kind, size, ONE)
    with pytest.raises(poptorch.Error, match=f"replicaGrouping of weight: {words}"):
        step(torch.randn(8, 4))


def test_scalars_and_compiled_models_are_refused() -> None:
    model = Weighted(4)
    model.scale = nn.Parameter(torch.tensor(1.0))
    step = poptorch.inferenceModel(model, chosen())
    with pytest.raises(poptorch.Error, match="Scalars cannot be passed as per-replica weight tensor values"):
        step.scale.replicaGrouping(ALONE, 0, ONE)
    step.weight.replicaGrouping(ALONE, 0, ONE)
    step(torch.randn(8, 4))
    with pytest.raises(poptorch.Error, match="must be called before the model is compiled"):
        step.weight.replicaGrouping(CONSECUTIVE, 2, ONE)
