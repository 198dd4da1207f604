"""Inference with ``frozen_weights``: what depends on weights alone is computed once, and again when they change."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Scaled(nn.Module):
    """A product with weights that are themselves computed: `[N, 8]` to `[N, 4]`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight * 2 + 1).t()


@pytest.fixture
def model() -> Scaled:
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Scaled()


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


def compiled(model: nn.Module, **options: object) -> nn.Module:
    return torch.compile(model, backend="ipu", options=options)  # type: ignore[return-value]


@torch.no_grad()
def test_a_write_that_torch_does_not_count_is_seen_only_without_the_option(model: Scaled) -> None:
    frozen, plain = compiled(model, frozen_weights=True), compiled(model)
    before = model(X)
    torch.testing.assert_close(frozen(X), before)
    model.weight.data.mul_(3)
    torch.testing.assert_close(frozen(X), before)
    torch.testing.assert_close(plain(X), model(X))


@torch.no_grad()
def test_a_counted_write_is_seen(model: Scaled) -> None:
    frozen = compiled(model, frozen_weights=True)
    frozen(X)
    model.weight.mul_(3)
    torch.testing.assert_close(frozen(X), model(X))


@torch.no_grad()
def test_a_new_tensor_in_place_of_the_weight_is_seen_wherever_it_lies(model: Scaled) -> None:
    frozen = compiled(model, frozen_weights=True)
    for seed in range(5):  # the memory of the weight before is free for the next one
        frozen(X)
        torch.manual_seed(seed)
        model.load_state_dict({"weight": torch.randn(4, 8)}, assign=True)
        torch.testing.assert_close(frozen(X), model(X))


@torch.no_grad()
def test_weights_that_are_narrowed_at_the_border_are_never_taken_for_older_ones() -> None:
    torch._dynamo.reset()
    model = Scaled().double()
    frozen = compiled(model, frozen_weights=True)
    for factor in (1.0, 2.0, 3.0):
        model.weight.mul_(factor)
        # Computed in float32, as the warning at compilation says.
        torch.testing.assert_close(frozen(X.double()), model(X.double()), rtol=1e-5, atol=1e-5)


def test_training_is_left_alone(model: Scaled) -> None:
    frozen = compiled(model, frozen_weights=True)
    for _ in range(2):
        model.zero_grad()
        frozen(X).square().sum().backward()
        ours = model.weight.grad
        model.zero_grad()
        model(X).square().sum().backward()
        torch.testing.assert_close(ours, model.weight.grad)
        model.weight.data.mul_(2)
