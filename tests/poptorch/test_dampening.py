"""Dampening of SGD as PopART has it: ``v = m*v + (1-d)*(g + wd*w)`` from ``v = 0`` on, without momentum too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch

Maker = Callable[[Any], torch.optim.Optimizer]


class Product(nn.Module):
    """Its loss is ``(a*x + b*x).sum()``: each gradient is the sum of the input, whatever the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.full((3,), 2.0)), nn.Parameter(torch.full((3,), -1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.a * x + self.b * x, "sum")


def weights(optimizer: Maker, updates: int = 3, settings: Any = None, batch: int = 1) -> list[list[float]]:
    """Return the first element of both weights after each update with a gradient of 1."""
    model = Product()
    step = poptorch.trainingModel(model, settings, optimizer(model))
    found = []
    for _ in range(updates):
        step(torch.ones(batch, 3) / batch if settings is None else torch.ones(batch, 3))
        found.append([model.a[0].item(), model.b[0].item()])
    return found


def popart(numbers: Sequence[dict[str, float]], updates: int = 3) -> list[list[float]]:
    """Return the same by the formula, in Python's float64; ``numbers`` are those of the groups of a and b."""
    w, v, found = [2.0, -1.0], [0.0, 0.0], []
    for _ in range(updates):
        for k, group in enumerate(numbers):
            fresh = 1.0 + group.get("weight_decay", 0.0) * w[k]
            v[k] = group.get("momentum", 0.0) * v[k] + (1.0 - group.get("dampening", 0.0)) * fresh
            w[k] -= group["lr"] * v[k]
        found.append(list(w))
    return found


def close(found: list[list[float]], expected: list[list[float]]) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.SGD, poptorch.optim.SGD])
@pytest.mark.parametrize("numbers", [
    {"momentum": 0.9}, {}, {"momentum": 0.9, "weight_decay": 0.1}, {"weight_decay": 0.1},
])
def test_the_first_update_is_damped_and_so_is_one_without_momentum(kind: Any, numbers: dict[str, float]) -> None:
    given = {"lr": 0.1, "dampening": 0.3, **numbers}
    close(weights(lambda model: kind(model.parameters(), **given)), popart([given] * 2))
    if "weight_decay" not in numbers:
        first, second = (2.0 - row[0] for row in popart([given] * 2)[:2])
        assert (round(first, 4), round(second, 4)) == (0.07, 0.203 if numbers else 0.14)


def test_groups_have_their_own() -> None:
    groups = [{"lr": 0.1, "dampening": 0.5, "momentum": 0.0}, {"lr": 0.2, "dampening": 0.25, "momentum": 0.5}]

    def optimizer(model: Product) -> torch.optim.Optimizer:
        return poptorch.optim.SGD([{"params": [w], **g} for w, g in zip((model.a, model.b), groups, strict=True)])

    close(weights(optimizer), popart(groups))


@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_accumulated_gradients_are_damped_once_an_update(combined: bool, momentum: float) -> None:
    settings = poptorch.Options()
    settings.Training.gradientAccumulation(2)
    given = {"lr": 0.1, "dampening": 0.3, "momentum": momentum}
    found = weights(
        lambda model: poptorch.optim.SGD(model.parameters(), **given, use_combined_accum=combined, loss_scaling=4.0),
        settings=settings, batch=2,
    )
    close(found, popart([given] * 2))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_another_optimiser_brings_its_own_dampening(momentum: float) -> None:
    model = Product()
    given = {"lr": 0.1, "dampening": 0.3, "momentum": momentum}
    step = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), **given))
    step(torch.ones(1, 3))
    step.setOptimizer(poptorch.optim.SGD(model.parameters(), **{**given, "dampening": 0.8}))
    step(torch.ones(1, 3))
    expected = 2.0 - 0.07 - 0.1 * (momentum * 0.7 + 0.2)
    assert model.a[0].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("updates", [0, 1])
def test_a_checkpoint_goes_on_where_it_was(updates: int) -> None:
    def make() -> tuple[Product, Any, Any]:
        model = Product()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.3)
        step = poptorch.trainingModel(model, optimizer=optimizer)
        step.compile(torch.ones(1, 3))
        return model, optimizer, step

    model, optimizer, step = make()
    for _ in range(updates):
        step(torch.ones(1, 3))
    other, its_optimizer, its_step = make()
    other.load_state_dict(model.state_dict())
    its_step.copyWeightsToDevice()
    its_optimizer.load_state_dict(optimizer.state_dict())
    found = []
    for _ in range(3 - updates):
        its_step(torch.ones(1, 3))
        found.append([other.a[0].item(), other.b[0].item()])
    close(found, popart([{"lr": 0.1, "momentum": 0.9, "dampening": 0.3}] * 2)[updates:])


def test_a_momentum_buffer_of_torch_is_taken_along() -> None:
    model = Product()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.3)
    for weight in model.parameters():
        optimizer.state[weight]["momentum_buffer"] = torch.full((3,), 10.0)
    poptorch.trainingModel(model, optimizer=optimizer)(torch.ones(1, 3))
    assert model.a[0].item() == pytest.approx(2.0 - 0.1 * (0.9 * 10 + 0.7), rel=1e-6)


def test_nesterov_with_dampening_is_refused_as_by_torch() -> None:
    with pytest.raises(ValueError, match="Nesterov momentum requires a momentum and zero dampening"):
        poptorch.optim.SGD(Product().parameters(), lr=0.1, momentum=0.9, dampening=0.3, nesterov=True)
