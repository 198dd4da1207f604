"""Tensors whose storage was taken away end with words, where eager PyTorch ends the process; the next call works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchipu
from torchipu.errors import ExecutionError


def compiled(model: nn.Module) -> Callable[..., torch.Tensor]:
    return torch.compile(model, backend="ipu")


DOORS = {"compile": compiled, "step": torchipu.InferenceStep}


@pytest.mark.parametrize("place", ["argument", "weight"])
@pytest.mark.parametrize("door", DOORS)
def test_memory_that_was_taken_away_is_told(door: str, place: str) -> None:
    model, x = nn.Linear(6, 3).requires_grad_(False), torch.randn(4, 6)
    run = DOORS[door](model)
    expected = run(x).clone()
    taken = x if place == "argument" else model.weight
    storage, held = taken.untyped_storage(), taken.clone()
    num_bytes = storage.nbytes()
    storage.resize_(0)
    with pytest.raises(ExecutionError, match="has no memory: its storage was resized to 0 bytes"):
        run(x)
    storage.resize_(num_bytes)
    taken.copy_(held)
    torch.testing.assert_close(run(x), expected, rtol=0, atol=0)


def test_a_training_step_leaves_weights_and_states_as_they_were() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).square().mean()

    model, x = Loss(), torch.randn(4, 6)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    step = torchipu.TrainStep(model, optimiser)
    step(x)
    weights = [weight.detach().clone() for weight in model.parameters()]
    states = [optimiser.state[weight]["exp_avg"].clone() for weight in model.parameters()]
    empty = torch.randn(4, 6)
    empty.untyped_storage().resize_(0)
    with pytest.raises(ExecutionError, match=r"shape \[4, 6\], argument .*has no memory"):
        step(empty)
    for weight, before, state in zip(model.parameters(), weights, states, strict=True):
        assert torch.equal(weight, before)
        assert torch.equal(optimiser.state[weight]["exp_avg"], state)
    step(x)
    assert not torch.equal(model.layer.weight, weights[0])


def test_empty_tensors_have_none_and_need_none() -> None:
    model = nn.Linear(6, 3)
    assert compiled(model)(torch.randn(0, 6)).shape == (0, 3)
    assert torchipu.InferenceStep(model)(torch.randn(0, 6)).shape == (0, 3)


@pytest.mark.parametrize("door", DOORS)
def test_an_argument_without_elements_needs_no_memory(door: str) -> None:
    model = nn.Linear(6, 3).requires_grad_(False)
    run = DOORS[door](model)
    empty = torch.randn(0, 6)
    assert empty.data_ptr() == 0
    for _ in range(2):
        assert run(empty).shape == (0, 3)
