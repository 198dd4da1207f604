"""Optimisers that take the place of others between calls: rates, moments, states."""

from __future__ import annotations

import pytest
import torch

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, twin_of


def test_a_learning_rate_holds_until_setOptimizer() -> None:
    model = Classifier()
    optimizer = sgd(model, 0.0)
    step = poptorch.trainingModel(model, options(), optimizer)
    x, labels = batch(4)
    first = step(x, labels)[1]
    optimizer.param_groups[0]["lr"] = 0.1
    assert torch.equal(step(x, labels)[1], first)
    step.setOptimizer(optimizer)
    step(x, labels)
    assert not torch.equal(step(x, labels)[1], first)


KINDS = {
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr), "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "RMSprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr, momentum=0.5),
    "poptorch": lambda p, lr: poptorch.optim.SGD(p, lr=lr, momentum=0.9),
}


@pytest.mark.parametrize("has_run", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_outlive_another_optimiser_of_the_same_kind(kind: str, has_run: bool) -> None:
    make, model = KINDS[kind], Classifier()
    twin = twin_of(model)
    step = poptorch.trainingModel(model, options(), make(model.parameters(), 0.1))
    x, labels = batch(4)
    optimizer = make(twin.parameters(), 0.1)
    if has_run:
        step(x, labels)
        eager_training(twin, optimizer, (x, labels))
    else:
        step.compile(x, labels)
    step.setOptimizer(make(model.parameters(), 0.01))
    optimizer.param_groups[0]["lr"] = 0.01
    for _ in range(3):
        step(x, labels)
        eager_training(twin, optimizer, (x, labels))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-5)


def test_another_optimiser_brings_the_state_that_it_was_given() -> None:
    model = Classifier()
    twin = twin_of(model)
    step = poptorch.trainingModel(model, options(), torch.optim.Adam(model.parameters(), lr=0.1))
    x, labels = batch(4)
    step(x, labels)
    eager_training(twin, torch.optim.Adam(twin.parameters(), lr=0.1), (x, labels))
    optimizer, other = (torch.optim.Adam(one.parameters(), lr=0.01) for one in (twin, model))
    for one in (optimizer, other):
        for parameter in one.param_groups[0]["params"]:
            one.state[parameter] = {
                "step": torch.tensor(3.0), "exp_avg": torch.full_like(parameter, 0.01),
                "exp_avg_sq": torch.full_like(parameter, 0.5),
            }
    step.setOptimizer(other)
    for _ in range(3):
        step(x, labels)
        eager_training(twin, optimizer, (x, labels))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-5)
    with pytest.raises(poptorch.Error, match="of another kind"):
        step.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
