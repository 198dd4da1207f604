"""Vertices of updates by norms of whole tensors, of running means and of counters, vertex by vertex on the tiles."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from tests.device.tilings.judged import judge
from torchipu.errors import OptionsError
from torchipu.optim import LAMB, LARS


class Layers(nn.Module):
    """Gives its loss; one weight is zero, another has one element, and one as many as an optimiser has numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(13, 16), nn.Linear(16, 5)
        self.slope, self.zero = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(5))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.tanh(self.first(x) * self.slope)) + self.zero
        return nn.functional.cross_entropy(y.float(), target)


def batch(samples: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(samples, 13), torch.randint(0, 5, (samples,))


# Tiles have hyper-parameters as floats; only with the correction of biases does their rounding fall out again.
EXACT = (0.875, 0.984375)
OPTIMISERS = {
    "lamb": partial(LAMB, lr=0.1),
    "lamb plain": partial(LAMB, lr=0.1, betas=EXACT, bias_correction=False, max_weight_norm=0.5),
    "lars": partial(LARS, lr=0.5, weight_decay=0.1, trust_coefficient=0.1),
}


SGD = partial(torch.optim.SGD, lr=0.1)


def check(optimizer: Any = SGD, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    model, (x, target) = Layers().to(dtype), batch()
    found = torchipu.check(
        model, x.to(dtype), target, optimizer=optimizer(model.parameters()), options=torchipu.Options(**options),
    )
    assert found.is_equal, str(found)
    assert not found.whole
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_updates_by_norms(name: str, dtype: torch.dtype) -> None:
    check(OPTIMISERS[name], dtype, gradient_accumulation=2, device_iterations=2)
    x, target = batch()
    machine = judge(Layers().to(dtype), x.to(dtype), target, optimizer=OPTIMISERS[name])
    assert {f"ipu.{name.split()[0]}.default"} <= set(machine.tiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_running_mean(dtype: torch.dtype) -> None:
    check(dtype=dtype, gradient_accumulation=3, mean_reduction="running")
    x, target = batch()
    machine = judge(
        Layers().to(dtype), x.to(dtype), target, optimizer=partial(torch.optim.SGD, lr=0.1),
        options=torchipu.Options(gradient_accumulation=3, mean_reduction="running", allow_out_of_memory=True),
    )
    assert "ipu.accumulate_mean.default" in machine.tiled
    assert "ipu.accumulate_mean.default" not in machine.without_kernel


SHARED = torchipu.TensorLocation(replicated_sharding=True, min_elements_sharding=0)


@pytest.mark.parametrize(("replicas", "optimizer"), [
    (2, partial(torch.optim.AdamW, lr=0.1)), (5, partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
])
def test_updates_of_shares(replicas: int, optimizer: Any) -> None:
    """Five replicas have shares of 13 times 16 elements that are not equal, and none of some others."""
    model, (x, target) = Layers(), batch(20)
    options = torchipu.Options(
        replicas=replicas, gradient_accumulation=2, optimiser_state_location=SHARED, weight_location=SHARED,
    )
    found = torchipu.check(model, x, target, optimizer=optimizer(model.parameters()), options=options)
    assert found.is_equal, str(found)
    assert not found.whole


def test_norms_of_weights_of_which_replicas_have_shares_are_refused() -> None:
    with pytest.raises(OptionsError, match="a replica has a share"):
        check(OPTIMISERS["lamb"], replicas=2, optimiser_state_location=SHARED)


def test_replicas_take_the_mean_of_running_means() -> None:
    check(partial(torch.optim.Adam, lr=0.1), gradient_accumulation=2, replicas=2, mean_reduction="running")
    check(partial(torch.optim.Adam, lr=0.1), gradient_accumulation=2, replicas=2, mean_reduction="running",
          optimiser_state_location=SHARED, accumulator_location=SHARED)


@pytest.mark.parametrize("period", [1, 2])
def test_a_scale_of_the_loss_that_the_program_finds(period: int) -> None:
    check(dtype=torch.float16, automatic_loss_scaling=True, loss_scaling=64.0, gradient_accumulation=2,
          device_iterations=3, loss_scale_period=period, loss_scale_bin_edge=0.001)


def test_a_norm_beside_weights_of_as_many_elements_as_there_are_numbers() -> None:
    check(max_grad_norm=0.01)
    check(partial(torch.optim.AdamW, lr=0.1), max_grad_norm=0.01, max_grad_value=0.05, gradient_accumulation=2)


@pytest.mark.parametrize("more", [{}, {"max_grad_value": 1.0}, {"max_grad_value": 1.0, "max_grad_norm": 0.1}])
def test_bounds_under_a_scale_that_the_program_finds(more: dict[str, float]) -> None:
    check(dtype=torch.float16, automatic_loss_scaling=True, loss_scaling=64.0, device_iterations=2, **more)
