"""Accumulators and optimiser states of another type than gradients and weights, against float64 and gfloat."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gfloat import RoundMode, round_ndarray
from gfloat.formats import format_info_binary16

import torchipu
from tests.numerics.test_rounding import random_bits
from torchipu.ir.types import DType

SIZE = 4096


class Scale(torch.nn.Module):
    """The gradient of the weight is the sum of the inputs over the batch."""

    def __init__(self, dtype=torch.float32) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SIZE, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def gradient(parts, *, dtype=torch.float32, **options):
    """Return what SGD with a rate of 1 takes from weights of zero, for a gradient part for each micro-batch."""
    model = Scale(dtype)
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=1.0),
        torchipu.Options(gradient_accumulation=len(parts), **options),
    )
    step(torch.stack(parts).to(dtype))
    accumulators = {t.dtype for t in step.compiled.graph.inputs if t.name.startswith("acc.")}
    return -model.weight.detach().double(), accumulators


def rounded(exact, mode=RoundMode.TiesToEven, bits=None):
    keywords = {} if bits is None else {"srbits": bits, "srnumbits": 16}
    return round_ndarray(format_info_binary16, exact, mode, **keywords)


def parts_of(count, scale=1.0):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(SIZE, generator=generator) * scale for _ in range(count)]


def test_a_half_accumulator_rounds_each_sum_to_nearest():
    parts = parts_of(3)
    found, types = gradient(parts, accumulator_type="half", accumulation_reduction="sum")
    assert types == {DType.HALF}
    total = np.zeros(SIZE)
    for part in parts:
        # float arithmetic, whose rounding comes before that to half
        total = rounded((total.astype(np.float32) + part.numpy()).astype(np.float64))
    assert np.array_equal(found.numpy(), total)


def test_a_half_accumulator_rounds_stochastically_where_the_machine_does():
    part = parts_of(1)[0]
    found, _ = gradient(
        [part, torch.zeros(SIZE)], accumulator_type="half", accumulation_reduction="sum", stochastic_rounding=True,
        seed=11,
    )
    first = 1 << 28  # streams of the backward leg
    once = rounded(part.double().numpy(), RoundMode.StochasticFastest, random_bits(SIZE, stream=first))
    assert np.array_equal(found.numpy(), once)
    assert not np.array_equal(once, rounded(part.double().numpy()))


def test_float_accumulators_of_half_gradients_lose_nothing():
    parts = [torch.full((SIZE,), 2048.0), *[torch.ones(SIZE)] * 5]  # 2048 + 1 is no half
    lost, _ = gradient(parts, dtype=torch.half, accumulation_reduction="sum")
    kept, types = gradient(parts, dtype=torch.half, accumulation_reduction="sum", accumulator_type="float")
    assert types == {DType.FLOAT}
    assert bool((lost == 2048).all())
    assert bool((kept == 2052).all())  # 2053 rounded once, to the weight


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_running_mean_does_not_overflow_where_a_sum_does(replicas):
    parts = [torch.full((SIZE,), 40000.0)] * 4
    model = {}
    for reduction in ("post", "running"):
        module = Scale(torch.half)
        step = torchipu.TrainStep(
            module, torch.optim.SGD(module.parameters(), lr=2.0**-10),
            torchipu.Options(gradient_accumulation=4, replicas=replicas, mean_reduction=reduction),
        )
        step(torch.stack(parts * replicas).half())
        model[reduction] = module.weight.detach().double()
    assert bool(model["post"].isinf().all())
    torch.testing.assert_close(model["running"], torch.full((SIZE,), -40000 / 1024).double(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("iterations", [1, 3])
def test_a_running_mean_begins_anew_with_each_update(iterations):
    parts = parts_of(4 * iterations)
    weights = []
    for reduction in ("post", "running"):
        model = Scale()
        step = torchipu.TrainStep(
            model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5),
            torchipu.Options(gradient_accumulation=4, mean_reduction=reduction, device_iterations=iterations),
        )
        step(torch.stack(parts))
        weights.append(model.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


STATES = {
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01), {"exp_avg": "first", "exp_avg_sq": "second"}),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01), {"exp_avg": "first", "exp_avg_sq": "second"}),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {"momentum_buffer": "first"}),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
                {"square_avg": "second", "grad_avg": "first"}),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("weights", [torch.float16, torch.float32])
def test_states_have_the_types_asked_for_and_train(name, weights):
    make, kinds = STATES[name]
    torch.manual_seed(2)
    model = torch.nn.Linear(32, 8).to(weights)
    exact = torch.nn.Linear(32, 8).double()
    exact.load_state_dict(model.state_dict())
    step = torchipu.TrainStep(
        Squares(model), optimiser := make(model.parameters()),
        torchipu.Options(first_moment_type="half", second_moment_type="float"),
    )
    reference = make(exact.parameters())
    for batch in torch.randn(8, 16, 32).to(weights):
        step(batch)
        reference.zero_grad()
        Squares(exact)(batch.double()).backward()
        reference.step()
    for state in optimiser.state.values():
        for key, kind in kinds.items():
            assert state[key].dtype is {"first": torch.half, "second": torch.float32}[kind]
    # Eight updates with an error of half a unit of a half each, in units of weights of up to a quarter.
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=4e-3 if weights is torch.half else 2e-3)


class Squares(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).square().mean()


def test_a_half_second_moment_loses_small_squares_and_a_float_one_keeps_them():
    moved = {}
    for second in ("half", "float"):
        model = Scale(torch.half)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        step = torchipu.TrainStep(
            model, optimiser, torchipu.Options(first_moment_type="half", second_moment_type=second)
        )
        step(torch.full((1, SIZE), 1e-3).half())  # (1 - beta2) g^2 = 1e-9, below the smallest half
        moved[second] = optimiser.state[model.weight]["exp_avg_sq"]
    assert bool((moved["half"] == 0).all())
    assert bool((moved["float"] > 9e-10).all())
