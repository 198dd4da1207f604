"""A product, its bias and an activation, which the host computes in one go, against eager in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchipu
from torchipu.host.planner import Planner

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


class Layer(nn.Module):
    """A layer and its activation: `[T, N, inner]` to `[N, T, columns]`."""

    def __init__(self, inner: int, columns: int, activation: str, *, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(inner, columns, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](self.layer(x.transpose(0, 1)))


def fused(model: nn.Module, *inputs: Tensor) -> list[list[str]]:
    """Return the ops that one kernel computes together, less views."""
    step = torchipu.InferenceStep(model)
    step(*inputs)
    found = Planner(step.compiled.graph).fused.values()
    return [[op.kind for op in ops if "view" not in op.kind] for ops, _ in found]


# Rows few and many, panels whole and not, summands in one block and several: dot products, wide tiles, products that
# are computed transposed, rows that lie as they are and packed ones.
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "inner", "columns"), [
    (3, 20, 9), (9, 5, 100), (60, 40, 33), (40, 700, 320), (60, 400, 290), (130, 800, 70), (20, 1024, 96),
])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_values_equal_float64(activation: str, rows: int, inner: int, columns: int, bias: bool, frozen: bool) -> None:
    model, x = Layer(inner, columns, activation, bias=bias), torch.randn(rows, 2, inner)
    options = torchipu.Options(frozen_weights=frozen)
    result = torchipu.InferenceStep(model, options=options)(x)
    expected = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(result, expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_an_activation_joins_its_product(activation: str) -> None:
    together = fused(Layer(12, 9, activation), torch.randn(3, 5, 12))
    assert [ops[-1] for ops in together] == [activation]
    assert together[0][0] in ("mm", "addmm")


def test_what_others_read_too_is_activated_by_itself() -> None:
    class Twice(Layer):
        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return y + F.gelu(y)

    assert fused(Twice(12, 9, "gelu"), torch.randn(4, 12)) == []


def test_gelu_by_tanh_and_factors_stay_apart() -> None:
    class Others(Layer):
        def forward(self, x: Tensor) -> Tensor:
            scaled = torch.addmm(self.layer.bias, x, self.layer.weight.t(), beta=2.0)
            return F.gelu(self.layer(x), approximate="tanh") + F.relu(scaled)

    model, x = Others(12, 9, "gelu"), torch.randn(4, 12)
    assert fused(model, x) == []
    expected = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(torchipu.InferenceStep(model)(x), expected.float(), rtol=1e-4, atol=1e-5)


def test_not_a_number_passes_a_relu() -> None:
    model, x = Layer(12, 40, "relu"), torch.randn(5, 4, 12)
    x[2, 1] = float("nan")
    assert torchipu.InferenceStep(model)(x).isnan().equal(model(x).isnan())


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_gradients_equal_float64(micro_batches: int) -> None:
    class WithLoss(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).square().sum()

    model, x = Layer(12, 9, "relu"), torch.randn(4 * micro_batches, 5, 12)
    reference = copy.deepcopy(model).double()
    options = torchipu.Options(gradient_accumulation=micro_batches, accumulation_reduction="sum")
    before = model.layer.weight.detach().clone()
    torchipu.TrainStep(WithLoss(model), torch.optim.SGD(model.parameters(), lr=1.0), options=options)(x)
    WithLoss(reference)(x.double()).backward()
    assert reference.layer.weight.grad is not None
    torch.testing.assert_close(
        before - model.layer.weight.detach(), reference.layer.weight.grad.float(), rtol=1e-4, atol=1e-3,
    )
