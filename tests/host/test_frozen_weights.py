"""Inference with ``frozen_weights``: what depends on weights alone is computed once, and again when they change."""

from __future__ import annotations

import copy
import re
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from torchipu import InferenceStep, Options, TrainStep


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
def test_a_write_that_torch_does_not_count_is_seen_by_its_elements_with_one_warning(model: Scaled) -> None:
    frozen, plain = compiled(model, frozen_weights=True), compiled(model)
    torch.testing.assert_close(frozen(X), model(X))
    model.weight.data.mul_(3)
    with pytest.warns(UserWarning, match=re.escape("the weight of shape [4, 8] was written in a way that torch does")):
        found = frozen(X)
    torch.testing.assert_close(found, model(X))
    torch.testing.assert_close(plain(X), model(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (2, 5):
            for _ in range(3):  # later calls take a shorter way
                torch.testing.assert_close(frozen(X), model(X))
            model.weight.detach().numpy()[:] *= factor
            torch.testing.assert_close(frozen(X), model(X))


@torch.no_grad()
def test_a_write_into_few_elements_that_torch_does_not_count_is_not_seen(model: Scaled) -> None:
    frozen = compiled(model, frozen_weights=True)
    before = model(X)
    frozen(X)
    model.weight.data[0, 1] = 7
    torch.testing.assert_close(frozen(X), before)
    torch.autograd.graph.increment_version(model.weight)
    torch.testing.assert_close(frozen(X), model(X))


@torch.no_grad()
@pytest.mark.parametrize("frozen_weights", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_step_takes_weights_that_were_written_as_torch_does_not_count(
    frozen_weights: bool, memory_format: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).to(memory_format=memory_format).eval()
    images = torch.randn(2, 3, 6, 6)
    step = InferenceStep(model, Options(frozen_weights=frozen_weights))
    for _ in range(2):
        torch.testing.assert_close(step(images), model(images))
    has_copy = frozen_weights or memory_format is torch.channels_last
    with pytest.warns(UserWarning, match="the weight 'weight'.* was written") if has_copy else nullcontext():
        for parameter in model.parameters():
            parameter.data.mul_(3)
        torch.testing.assert_close(step(images), model(images))
    for _ in range(2):
        torch.testing.assert_close(step(images), model(images))


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


@torch.no_grad()
@pytest.mark.parametrize("in_inference_mode", [("weight",), ("weight", "bias")])
def test_weights_of_inference_mode_of_which_torch_counts_no_write_are_prepared_at_each_call(
    in_inference_mode: tuple[str, ...],
) -> None:
    torch._dynamo.reset()
    model = nn.Linear(8, 4)
    with torch.inference_mode():
        for name in in_inference_mode:
            setattr(model, name, nn.Parameter(torch.randn_like(getattr(model, name)), requires_grad=False))
    frozen = compiled(model, frozen_weights=True)
    for _ in range(3):
        torch.testing.assert_close(frozen(X), model(X))
        with torch.inference_mode():
            model.weight[0, 1] += 1  # of the elements that are looked at none
            model.weight[1] += 1


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


def test_a_training_step_keeps_weights_that_were_written_as_torch_does_not_count() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    optimiser = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    images = torch.randn(2, 3, 6, 6)
    step = TrainStep(Squared(model), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    for factor in (1, 3, 1):
        with pytest.warns(UserWarning, match="the weight 'model.weight'") if factor > 1 else nullcontext():
            for parameter in (*model.parameters(), *twin.parameters()):
                parameter.data.mul_(factor)
            step(images)
        optimiser.zero_grad()
        twin(images).square().mean().backward()
        optimiser.step()
        torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


class Squared(nn.Module):
    """The mean of the squares of what a model returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()
