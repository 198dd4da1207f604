"""`poptorch.autocast` of older releases: which ops are cast, where, and who switches it off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import options
from torchipu import poptorch
from torchipu.poptorch.autocasting import Policy


class Casting(nn.Module):
    """A convolution in a region, and one outside of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        with poptorch.autocast():
            first = self.first(x)
            with poptorch.autocast(enabled=False):
                inner = self.second(x)
        return first, inner, self.second(x), torch.relu(first)


X = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def dtypes(results: Any) -> list[torch.dtype]:
    return [result.dtype for result in results]


def test_a_region_computes_convolutions_in_half() -> None:
    model = Casting()
    results = poptorch.inferenceModel(model, options())(X)
    assert dtypes(results) == [torch.float16, torch.float32, torch.float32, torch.float16]
    exact = model.first.double()(X.double())
    torch.testing.assert_close(results[0].double(), exact, rtol=2e-3, atol=2e-3)
    assert dtypes(Casting()(X)) == [torch.float32] * 4  # on the host it does nothing


def test_options_switch_it_off() -> None:
    off = options()
    off.Precision.autocastEnabled(False)
    assert dtypes(poptorch.inferenceModel(Casting(), off)(X)) == [torch.float32] * 4


class Products(nn.Module):
    def forward(self, half: torch.Tensor, single: torch.Tensor) -> Any:
        with poptorch.autocast():
            return single @ single, torch.cat([half, single]), torch.sin(single), torch.stack([half, half])


@pytest.mark.parametrize(("policy", "expected"), [
    (Policy(), (torch.float16, torch.float32, torch.float32, torch.float16)),
    (Policy(fp16=[torch.sin], fp32=["matmul"]), (torch.float32, torch.float32, torch.float16, torch.float16)),
    (Policy(fp16=[], promote=[], demote=["cat", torch.sin]),
     (torch.float32, torch.float16, torch.float32, torch.float16)),
    (Policy(fp32=[torch.Tensor.__matmul__, "torch.stack"]),
     (torch.float32, torch.float32, torch.float32, torch.float32)),
])
def test_the_policy_names_ops(policy: Policy, expected: tuple[torch.dtype, ...]) -> None:
    chosen = options()
    chosen.Precision.autocastPolicy(policy)
    step = poptorch.inferenceModel(Products(), chosen)
    assert tuple(dtypes(step(torch.ones(2, 2).half(), torch.ones(2, 2)))) == expected
    assert "fp16=[" in repr(chosen)


def test_functions_and_modules_are_regions_too() -> None:
    class Decorated(nn.Conv2d):
        @poptorch.autocast()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    assert poptorch.inferenceModel(Decorated(3, 3, 1))(X).dtype == torch.float16
    module = nn.Conv2d(3, 3, 1).autocast()
    assert poptorch.inferenceModel(module)(X).dtype == torch.float16
    assert poptorch.inferenceModel(nn.Conv2d(3, 3, 1).autocast(False))(X).dtype == torch.float32
    assert module(X).dtype == torch.float32


def test_training_in_a_region_follows_float64() -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            with poptorch.autocast():
                out = self.linear(x)
            return out, poptorch.identity_loss(out.float() ** 2, "sum")

    model, exact = Trained(), Trained().double()
    x = torch.randn(2, 4)
    step = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert step(x)[0].dtype == torch.float16
    exact(x.double())[1].backward()
    torch.optim.SGD(exact.parameters(), lr=0.1).step()
    # Products in half: eleven bits of each operand.
    torch.testing.assert_close(
        model.linear.weight.detach().double(), exact.linear.weight.detach(), rtol=5e-3, atol=5e-3,
    )
