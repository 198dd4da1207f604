"""Tensors made outside of `forward` that are no inputs, parameters or buffers, through all doors."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from torchipu import poptorch

TABLE = torch.arange(1.0, 5.0)
X = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.1, 0.2, -0.3, 0.4]])


class Scaled(torch.autograd.Function):
    """Multiplies by a tensor that is a global one, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * TABLE.to(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * TABLE.to(gradient)


class Model(nn.Module):
    """Calls a function of a product and a plain attribute.

    Args:
        body: The function.
        dtype: Of parameters and of the attribute.
    """

    def __init__(self, body: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.linear, self.row = body, nn.Linear(4, 4, dtype=dtype), torch.arange(2.0, 6.0).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.linear(x), self.row)


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        result = self.model(x)
        return result, poptorch.identity_loss(result.float().pow(2), "mean")


BODIES = {
    "moved": lambda y, row: y * TABLE.to(y), "attribute": lambda y, row: y * row + row[:1],
    "computed": lambda y, row: y + (TABLE * 2).cumsum(0).to(y), "no dimension": lambda y, row: y * TABLE.sum(),
    "view": lambda y, row: y * TABLE.view(2, 2)[:, 1:].to(y.device).sum().to(y), "attribute transposed":
    lambda y, row: y * row.view(2, 2).t().reshape(4), "expanded": lambda y, row: y * row[:2].expand(2, 2).reshape(4),
    "transposed and flat": lambda y, row: y + (row.view(2, 2).mT * 1).flatten(), "product":
    lambda y, row: y * (row.view(2, 2) @ row.view(2, 2)).reshape(4), "contiguous":
    lambda y, row: y @ row.view(2, 2).t().contiguous().view(1, 4).expand(4, 4), "both directions":
    lambda y, row: Scaled.apply(y), "rows": lambda y, row: y[:, torch.tensor([1, 0, 3, 2])] * row.flip(0),
    "written beside": lambda y, row: y * row.clone().mul_(2)[None].repeat(2, 1), "joined":
    lambda y, row: torch.cat([y, row.view(2, 2).t().reshape(1, 4)])[1:] * 2,
}


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="ipu", fullgraph=True)


DOORS = {"compile": compiled, "step": torchipu.InferenceStep, "poptorch": poptorch.inferenceModel}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    warnings.simplefilter("ignore", UserWarning)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("door", DOORS)
def test_they_are_constants_of_inference(door: str, body: str, dtype: torch.dtype) -> None:
    model, x = Model(BODIES[body], dtype), X.to(dtype)
    expected = model(x)
    found = DOORS[door](model)(x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 5e-3, atol=5e-3)


def trained_by_compile(model: nn.Module, x: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled(model)(x)[1].backward()
    optimiser.step()


def trained_by_step(model: nn.Module, x: torch.Tensor) -> None:
    torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01))(x)


def trained_by_poptorch(model: nn.Module, x: torch.Tensor) -> None:
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    executor(x)
    executor.copyWeightsToHost()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("train", [trained_by_compile, trained_by_step, trained_by_poptorch])
def test_they_are_constants_of_training(
    train: Callable[[nn.Module, torch.Tensor], None], body: str, dtype: torch.dtype,
) -> None:
    model, x = WithLoss(Model(BODIES[body], dtype)), X.to(dtype)
    twin = copy.deepcopy(model)
    train(model, x)
    twin(x)[1].backward()
    torch.optim.SGD(twin.parameters(), lr=0.01).step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4 if dtype == torch.float32 else 5e-3, atol=5e-3)


WRITES = {
    "whole": lambda y, row: y * row.add_(1), "part": lambda y, row: (row[:2].mul_(3), y * row)[1],
    "item": lambda y, row: (row.__setitem__(0, 5.0), y * row)[1],
    "of the device": lambda y, row: (row.copy_(y[0]), y * row)[1],
}


@pytest.mark.parametrize("body", WRITES)
def test_a_step_refuses_writes_into_an_attribute_with_its_name_and_line(body: str) -> None:
    with pytest.raises(torchipu.CaptureError, match=r"forward writes into model\.row, which is neither") as caught:
        torchipu.InferenceStep(WithLoss(Model(WRITES[body], torch.float32)))(X)
    assert caught.value.source.file == __file__  # type: ignore[attr-defined]
    assert 'self.register_buffer("row", ...)' in str(caught.value)


def test_a_step_refuses_writes_into_a_global_tensor() -> None:
    with pytest.raises(torchipu.CaptureError, match=r"forward writes into TABLE, which is neither"):
        torchipu.InferenceStep(Model(lambda y, row: (TABLE.add_(1), y * TABLE)[1], torch.float32))(X)


@pytest.mark.parametrize(("door", "is_read_again"), [("compile", True), ("step", True), ("poptorch", False)])
def test_one_that_is_written_between_calls(door: str, is_read_again: bool) -> None:
    """What torch compiles reads it at each call, as eager does; with PopTorch it has the value at compilation."""
    model = Model(lambda y, row: y * row.view(2, 2).t().reshape(4), torch.float32)
    call = DOORS[door](model)
    before = model(X)
    torch.testing.assert_close(call(X), before)
    model.row.mul_(-3)
    torch.testing.assert_close(call(X), model(X) if is_read_again else before)
