"""Normalisation over groups of channels, which lie in blocks, against float64 torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.test_conv_blocked import blocked, plain
from torchipu._kernels.table.conv_blocked import Activation
from torchipu.host.emit import blocked_layout, group_norm_blocked
from torchipu.host.emit.conv_blocked import Ending

EPSILON = 1e-3
# images, channels, height, width; groups: within blocks and beyond, of parts of planes and of single pixels
CASES = [
    ((2, 60, 26, 25), 12), ((1, 64, 4, 4), 32), ((3, 5, 1, 3), 1), ((1, 96, 33, 20), 1), ((2, 17, 2, 1), 17),
    ((1, 48, 1, 1), 4),
]


def normalised(
    x: torch.Tensor, groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, ending: Ending,
    threads: int = 2,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the result, means and reciprocals of deviations."""
    plan = MiniPlanner(threads)
    images, channels, height, width = x.shape
    out = plan.scratch(blocked_layout.blocked_shape(x.shape))
    statistics = plan.scratch((images, groups)), plan.scratch((images, groups))
    factors = (None if factor is None else plan.hold(factor) for factor in (weight, bias))
    group_norm_blocked.emit(
        plan, (images, channels, height, width), groups, out, blocked(plan, x), statistics, *factors, EPSILON, ending,
    )
    mean, rstd = map(plan.fetch, statistics)
    return plain(plan, out, x.shape), mean, rstd


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize(("size", "groups"), CASES)
def test_groups_are_normalised(size: tuple[int, ...], groups: int, has_weight: bool, has_bias: bool) -> None:
    torch.manual_seed(3)
    x = torch.randn(size) * 3 + 5
    weight, bias = (torch.randn(size[1]) if has else None for has in (has_weight, has_bias))
    found, mean, rstd = normalised(x, groups, weight, bias, Ending())
    wide = [None if factor is None else factor.double() for factor in (weight, bias)]
    torch.testing.assert_close(found.double(), F.group_norm(x.double(), groups, *wide, EPSILON), rtol=1e-5, atol=1e-5)
    values = x.double().view(size[0], groups, -1)
    torch.testing.assert_close(mean.double(), values.mean(2), rtol=1e-6, atol=1e-6)
    exact = (values.var(2, correction=0) + EPSILON).rsqrt()
    torch.testing.assert_close(rstd.double(), exact, rtol=1e-5, atol=1e-6)


def test_a_large_mean_costs_the_deviation_no_digits() -> None:
    torch.manual_seed(4)
    x = torch.randn(2, 32, 23, 19) + 1000
    _, _, rstd = normalised(x, 4, None, None, Ending())
    exact = (x.double().view(2, 4, -1).var(2, correction=0) + EPSILON).rsqrt()
    torch.testing.assert_close(rstd.double(), exact, rtol=1e-5, atol=0)


def test_the_activation_follows_and_nan_stays_in_its_group() -> None:
    x = torch.randn(2, 32, 5, 9)
    x[0, 3, 2, 2] = float("nan")
    found, _, _ = normalised(x, 4, None, None, Ending(activation=Activation.RELU))
    exact = F.relu(F.group_norm(x.double(), 4, eps=EPSILON))
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert found[0, :8].isnan().all()
    assert not found[1].isnan().any()


@pytest.mark.parametrize(("size", "groups"), CASES[:4])
def test_any_number_of_threads_gives_the_same_bits(size: tuple[int, ...], groups: int) -> None:
    x = torch.randn(size)
    one, three = (normalised(x, groups, None, None, Ending(), threads)[0] for threads in (1, 3))
    assert torch.equal(one, three)
