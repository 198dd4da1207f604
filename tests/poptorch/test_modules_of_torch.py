"""Modules of torch that need care when they are wrapped: parametrized ones, and a loop over channels."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from torchipu import poptorch


class Scored(nn.Module):
    """Sums the squares of what a module returns.

    Args:
        inner: The module.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.inner(x).square(), "sum")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_cross_map_normalisation_has_the_values_of_eager_code(size: int) -> None:
    layer = nn.CrossMapLRN2d(size, alpha=0.5, beta=0.6, k=1.5)
    x = torch.randn(2, 6, 3, 4)
    torch.testing.assert_close(poptorch.inferenceModel(layer)(x).double(), layer(x.double()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 9])  # eager code has no gradient for 1
def test_cross_map_normalisation_trains_as_eager_code(size: int) -> None:
    torch.manual_seed(0)
    model, x = Scored(nn.Sequential(nn.Conv2d(6, 6, 1), nn.CrossMapLRN2d(size, 0.5, 0.6, 1.5))), torch.randn(2, 6, 3, 4)
    twin = copy.deepcopy(model).double()
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    loss = twin(x.double())
    loss.backward()
    torch.testing.assert_close(step(x).double(), loss.detach(), rtol=1e-5, atol=1e-5)
    for got, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        assert wanted.grad is not None
        torch.testing.assert_close(got.double(), wanted - 0.01 * wanted.grad, rtol=1e-5, atol=1e-5)


def test_cross_map_normalisation_refuses_other_ranks_in_the_words_of_eager_code() -> None:
    with pytest.raises(ValueError, match=r"CrossMapLRN2d: Expected input to be 4D, got 3D instead\."):
        poptorch.inferenceModel(nn.CrossMapLRN2d(3))(torch.ones(2, 3, 4))


class ParametrizedAtTheTop(nn.Linear):
    """Returns a loss, and is itself the module whose weight is parametrized."""

    def forward(self, x: torch.Tensor) -> Any:
        return poptorch.identity_loss(super().forward(x).square(), "sum")


def test_a_parametrized_module_can_be_wrapped_trained_and_unwrapped() -> None:
    torch.manual_seed(0)
    model, x = parametrizations.weight_norm(ParametrizedAtTheTop(4, 3)), torch.randn(5, 4)
    twin = copy.deepcopy(model).double()
    kind = type(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05)
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05))
    inference = poptorch.inferenceModel(model)
    for _ in range(3):
        optimizer.zero_grad()
        loss = twin(x.double())
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(step(x).double(), loss.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(inference(x).double(), twin(x.double()).detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.weight.double(), twin.weight, rtol=1e-5, atol=1e-5)
    assert list(model.state_dict()) == list(twin.state_dict())
    step.destroy()
    assert type(model) is kind
    assert nn.utils.parametrize.is_parametrized(model, "weight")
    torch.testing.assert_close(model(x).double(), twin(x.double()), rtol=1e-5, atol=1e-5)
