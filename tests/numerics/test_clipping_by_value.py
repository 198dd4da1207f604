"""Gradient clipping by value inside the program, against torch.nn.utils.clip_grad_value_ in float64."""

from __future__ import annotations

import copy

import pytest
import torch

import torchipu
from tests.numerics.test_clipping import BATCH, OPTIMISERS, Chain, assert_alike
from torchipu.errors import OptionsError


def compared(name, *, value, norm=None, ipus=1, pieces=1, updates=4, **options):
    """Return the parameters after training in the program and in eager float64, and the largest gradient."""
    torch.manual_seed(3)
    model = Chain(ipus)
    exact = copy.deepcopy(model).double()
    optimisers = OPTIMISERS[name](model.parameters()), OPTIMISERS[name](exact.parameters())
    given = torchipu.Options(max_grad_value=value, max_grad_norm=norm, **options)
    step = torchipu.TrainStep(model, optimisers[0], given)
    largest = 0.0
    for batch in torch.randn(updates, BATCH * pieces, 70):
        step(batch)
        optimisers[1].zero_grad()
        for part in batch.double().chunk(pieces):
            (exact(part) / pieces).backward()
        largest = max(largest, *(float(p.grad.abs().max()) for p in exact.parameters()))
        torch.nn.utils.clip_grad_value_(exact.parameters(), value)
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(exact.parameters(), norm)
        optimisers[1].step()
    return list(model.parameters()), list(exact.parameters()), largest


@pytest.mark.parametrize("name", ["momentum", "adam", "lars"])
def test_optimisers_clip_as_torch_does(name):
    ours, exact, largest = compared(name, value=0.01)
    assert largest > 0.05
    assert_alike(ours, exact)


@pytest.mark.parametrize(("ipus", "pieces", "options"), [
    (3, 8, {"gradient_accumulation": 8}),
    (2, 8, {"replicas": 2, "gradient_accumulation": 4}),
    (1, 4, {"gradient_accumulation": 4, "loss_scaling": 256.0, "norm": 0.02}),
    (1, 4, {"gradient_accumulation": 4, "automatic_loss_scaling": True}),
], ids=["pipeline", "replicas", "norm after values", "scale that follows"])
def test_it_is_right_over_ipus_replicas_and_accumulation(ipus, pieces, options):
    ours, exact, _ = compared("momentum", value=0.01, ipus=ipus, pieces=pieces, **options)
    assert_alike(ours, exact)


def test_gradients_that_are_no_numbers_stay_so():
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    class Root(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return (self.weight * x).sum()

    step = torchipu.TrainStep(Root(), torch.optim.SGD([weight], lr=1.0), torchipu.Options(max_grad_value=0.5))
    step(torch.tensor([float("nan"), float("inf"), -7.0]))
    assert weight.isnan().tolist() == [True, False, False]
    assert weight.tolist()[1:] == [1.5, 3.5]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_bounds_that_make_no_sense_are_refused(value):
    with pytest.raises(OptionsError, match="option 'max_grad_value' expects a float above 0 or None"):
        torchipu.Options(max_grad_value=value)
