"""Gradients of weights over channels in blocks, by defining sums and by Winograd's, against float64 torch."""

from __future__ import annotations

import pytest
import torch

from tests.kernels import test_conv_blocked, test_winograd
from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.test_conv_blocked import blocked, layers_of
from torchipu.host.emit import conv_blocked, conv_weight_blocked, winograd, winograd_weight
from torchipu.host.emit.conv_shape import Shape

LARGE = [
    (2, 1, 100, 70, (40, 37), (3, 3), 1, 1, 1),  # several parts of both, several strips and groups
    (9, 1, 65, 33, (7, 7), (3, 3), 1, 1, 1),
]


def gradients_of(case: tuple, emit: object, threads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what a plan gives for a case, the exact gradient, and that of eager PyTorch."""
    x, weight, exact, shape = layers_of(case)
    dy = torch.randn(exact.shape)
    _, groups, *_, stride, padding, dilation = case
    sizes = (weight.shape, stride, padding, dilation, groups)
    wanted = torch.nn.grad.conv2d_weight(x.double(), sizes[0], dy.double(), *sizes[1:])
    eager = torch.nn.grad.conv2d_weight(x, sizes[0], dy, *sizes[1:])
    plan = MiniPlanner(threads)
    dw = plan.scratch(weight.shape)
    emit(plan, shape, dw, blocked(plan, dy), blocked(plan, x))
    return plan.fetch(dw).clone(), wanted, eager


@pytest.mark.parametrize("case", [*test_conv_blocked.CASES, *LARGE])
def test_gradients_equal_float64_for_any_number_of_threads(case: tuple) -> None:
    if not conv_blocked.serves(layers_of(case)[-1]):
        pytest.skip("groups that do not fill the vectors of this machine")
    found, exact, _ = gradients_of(case, conv_weight_blocked.emit, 1)
    again, _, _ = gradients_of(case, conv_weight_blocked.emit, 3)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=2e-6 * float(exact.abs().max()))
    assert torch.equal(found, again)


@pytest.mark.parametrize("case", [*test_winograd.CASES, *LARGE])
def test_transforms_equal_float64_for_any_number_of_threads(case: tuple) -> None:
    assert winograd.serves(layers_of(case)[-1])
    found, exact, _ = gradients_of(case, winograd_weight.emit, 1)
    again, _, _ = gradients_of(case, winograd_weight.emit, 3)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=4e-6 * float(exact.abs().max()))
    assert torch.equal(found, again)


@pytest.mark.parametrize("size", [14, 56])
def test_errors_are_those_of_eager_or_a_few_times_as_large(size: int) -> None:
    case = (4, 1, 32, 48, (size, size), (3, 3), 1, 1, 1)
    for emit, times in ((conv_weight_blocked.emit, 2), (winograd_weight.emit, 6)):
        found, exact, eager = gradients_of(case, emit, 2)
        error, theirs = ((one.double() - exact).abs().max() for one in (found, eager))
        assert error <= times * theirs
        assert error <= 2e-6 * exact.abs().max()


def test_few_channels_or_results_do_not_pay_for_the_transforms() -> None:
    def shape(channels: int, results: int) -> Shape:
        return Shape(4, 1, channels, results, 56, 56, 56, 56, 3, 3, 1, 1, 1, 1, 1, 1)

    assert winograd_weight.saved_ns(shape(128, 128)) > 0
    assert winograd_weight.saved_ns(shape(8, 8)) < 0
