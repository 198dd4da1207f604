"""A product and its bias, which the host computes in one go, against eager in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import torchipu
from torchipu.host.planner import Planner


class Layers(nn.Module):
    """A layer whose bias torch adds apart, and a product with a bias of ours: `[T, N, 12]` to `[N, T, columns]`."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(12, columns)
        self.weight, self.bias = nn.Parameter(torch.randn(columns, 7)), nn.Parameter(torch.randn(1, 7))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.transpose(0, 1))
        return self.bias + y.flatten(0, 1) @ self.weight


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (40, 3)])
@pytest.mark.parametrize("columns", [1, 9, 70])
def test_values_and_gradients_equal_float64(shape: tuple[int, int], columns: int) -> None:
    model, x = Layers(columns), torch.randn(*shape, 12)
    reference = copy.deepcopy(model).double()
    step = torchipu.TrainStep(WithLoss(model), torch.optim.SGD(model.parameters(), lr=1.0))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss, result = step(x)
    expected_loss, expected = WithLoss(reference)(x.double())
    expected_loss.backward()
    torch.testing.assert_close(result, expected.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss, expected_loss.float(), rtol=1e-4, atol=1e-5)
    for old, new, wanted in zip(before, model.parameters(), reference.parameters(), strict=True):
        assert wanted.grad is not None
        torch.testing.assert_close(old - new.detach(), wanted.grad.float(), rtol=1e-4, atol=1e-4)


class WithLoss(nn.Module):
    """A model and the mean of the squares of what it makes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        result = self.model(x)
        return result.square().mean(), result


def fused(model: nn.Module, *inputs: Tensor) -> list[str]:
    """Return what follows a product in one kernel, by the last op of each."""
    step = torchipu.InferenceStep(model)
    step(*inputs)
    return [ops[-1].kind for ops, _ in Planner(step.compiled.graph).fused.values() if ops[0].kind == "mm"]


def test_a_bias_joins_its_product_and_a_residual_does_not() -> None:
    class Residual(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return x + x @ self.layer.weight

    assert fused(Layers(9), torch.randn(3, 5, 12)) == ["add", "add"]
    assert fused(Residual(12), torch.randn(3, 5, 12)) == []
