"""`serializedMatMul`: the product, its gradients, and less memory at its peak."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch
from torchipu.device.memory import tile_memory

Mode = poptorch.MatMulSerializationMode


class Product(nn.Module):
    """Multiplies by a weight."""

    def __init__(self, sizes: tuple[int, ...], mode: Mode, factor: int, keep_precision: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(*sizes))
        self.settings = mode, factor, keep_precision

    def forward(self, x: torch.Tensor) -> Any:
        y = poptorch.serializedMatMul(x, self.weight, *self.settings)
        return y, poptorch.identity_loss(y.float().square(), "mean")


@pytest.mark.parametrize(("left", "right"), [((6, 8), (8, 4)), ((2, 6, 8), (8, 4)), ((2, 6, 8), (2, 8, 4))])
@pytest.mark.parametrize(("mode", "factor"), [*itertools.product((*Mode,), (1, 2)), (Mode.ReducingDim, 4)])
def test_parts_give_the_product_and_its_gradients(left: Any, right: Any, mode: Mode, factor: int) -> None:
    model = Product(right, mode, factor)
    weight = model.weight.detach().double().requires_grad_()
    x = torch.randn(left)
    expected = x.double() @ weight
    expected.square().mean().backward()
    torch.testing.assert_close(model(x)[0].double(), expected)
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    got, _ = step(x)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        model.weight.detach().double(), (weight - weight.grad).detach(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("left", "right"), [((4, 32), (32, 3)), ((2, 4, 32), (32, 3)), ((2, 4, 32), (2, 32, 3))])
def test_kept_precision_adds_halves_up_in_float(left: Any, right: Any) -> None:
    x = torch.randn(left).half()
    model = Product(right, Mode.ReducingDim, 8, True).half()
    expected = x.double() @ model.weight.detach().double()
    weight = model.weight.detach().double().requires_grad_()
    (x.double() @ weight).square().mean().backward()
    before = model.weight.detach().double()
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    got = step(x)[0]
    # One rounding to half in all: half a unit of the last of eleven bits.
    assert ((got.double() - expected).abs() <= expected.abs() * 2**-11 + 1e-6).all()
    torch.testing.assert_close(before - model.weight.detach().double(), weight.grad, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("mode", [Mode.InputChannels, Mode.ReducingDim, Mode.OutputChannels])
def test_parts_need_less_memory_and_more_cycles(mode: Mode) -> None:
    def needs(factor: int) -> tuple[int, int]:
        settings = poptorch.Options()
        settings.logCycleCount(True)
        step = poptorch.inferenceModel(Product((512, 1024), mode if factor > 1 else Mode.Disabled, factor), settings)
        step(torch.randn(2048, 512))
        compiled = step._executable.compiled  # type: ignore[union-attr]
        return tile_memory(compiled.executable, compiled.target)[0].occupied_bytes, step.cycleCount()

    whole, halves, quarters = map(needs, (1, 2, 4))
    assert whole[0] > halves[0] > quarters[0]
    assert whole[1] < quarters[1]


def test_factors_and_types_are_checked() -> None:
    x = torch.randn(6, 8)
    with pytest.raises(poptorch.Error, match=r"Invalid serialisation factor 3 for .*OutputChannels of size 4"):
        poptorch.inferenceModel(Product((8, 4), Mode.OutputChannels, 3))(x)
    with pytest.raises(poptorch.Error, match="Invalid serialisation factor 0"):
        poptorch.inferenceModel(Product((8, 4), Mode.ReducingDim, 0))(x)
    with pytest.raises(poptorch.Error, match="one is a vector"):
        poptorch.inferenceModel(Product((8,), Mode.OutputChannels, 2))(x)
    with pytest.raises(AssertionError, match="mode must be a MatMulSerializationMode"):
        poptorch.serializedMatMul(x, x.T, "reducing_dim", 2)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="factor must be an int"):
        poptorch.serializedMatMul(x, x.T, Mode.ReducingDim, 2.0)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="keep_precision must be a bool"):
        poptorch.serializedMatMul(x, x.T, Mode.ReducingDim, 2, 1)  # type: ignore[arg-type]
