"""Gradients of convolutions of single channels over channels in blocks, against float64 torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn.grad import conv2d_input, conv2d_weight

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.test_conv_blocked import blocked, layers_of, plain
from torchipu.host.emit import blocked_layout, depthwise_blocked
from torchipu.host.emit.conv_blocked import Ending

# images, channels, size, window, stride, padding, dilation
CASES = [
    (2, 24, (9, 11), (3, 3), 1, 1, 1),
    (3, 33, (14, 14), (5, 5), 1, 2, 1),
    (2, 16, (7, 7), (7, 7), 1, 3, 1),  # most windows reach over a side
    (1, 20, (12, 10), (3, 3), 1, 0, 1),  # none does
    (2, 17, (16, 15), (3, 3), 2, 1, 1),
    (9, 40, (13, 14), (5, 5), 2, 2, 1),
    (2, 16, (15, 15), (3, 3), 2, 0, 1),  # the last row and column are met by none
    (2, 8, (20, 19), (9, 9), 2, 4, 1),  # more columns than are summed at once
    (2, 18, (11, 12), (2, 4), 1, 1, 1),
    (2, 18, (17, 16), (3, 5), (2, 1), 2, 1),
    (1, 19, (17, 23), (3, 3), 3, 1, 1),  # as many phases as taps
    (1, 19, (17, 23), (2, 2), 3, 0, 1),  # phases that no tap meets
    (2, 16, (14, 13), (3, 3), 2, 2, 2),  # all taps in one phase
    (2, 16, (14, 17), (3, 3), 2, 3, 3),
    (2, 16, (19, 17), (3, 3), 1, 4, 4),
    (1, 16, (5, 6), (3, 3), 1, 4, 1),  # windows wholly in the padding
    (1, 16, (5, 6), (3, 3), 2, 5, 1),
    (1, 130, (1, 1), (3, 3), 1, 1, 1),
    (1, 16, (2, 300), (3, 3), 1, 1, 1),  # long rows
    (2, 64, (70, 66), (3, 3), 1, 1, 1),  # several strips
    (40, 16, (6, 6), (1, 1), 2, 0, 1),
]


def gradients_of(case: tuple, threads: int) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return the gradients of input and weights that a plan gives, the exact ones, and those of eager PyTorch."""
    n, channels, size, window, stride, padding, dilation = case
    x, weight, exact, shape = layers_of((n, channels, channels, channels, size, window, stride, padding, dilation))
    assert depthwise_blocked.serves(shape)
    dy = torch.randn(exact.shape)

    def of_torch(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
        sizes = (stride, padding, dilation, channels)
        return [conv2d_input(x.shape, weight, dy, *sizes), conv2d_weight(x, weight.shape, dy, *sizes)]

    plan = MiniPlanner(threads)
    dx, dw = plan.scratch(blocked_layout.blocked_shape(x.shape)), plan.scratch(weight.shape)
    for held in (dx, dw):
        plan.fetch(held).fill_(float("nan"))
    lying = blocked(plan, dy)
    depthwise_blocked.emit_input_gradient(plan, shape, dx, lying, plan.hold(weight), Ending())
    depthwise_blocked.emit_weight_gradient(plan, shape, dw, lying, blocked(plan, x))
    found = [plain(plan, dx, x.shape), plan.fetch(dw).clone()]
    return found, of_torch(x.double(), weight.double(), dy.double()), of_torch(x, weight, dy)


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_float64_for_any_number_of_threads(case: tuple) -> None:
    found, exact, _ = gradients_of(case, 1)
    again, _, _ = gradients_of(case, 3)
    for one, other, wanted in zip(found, again, exact, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-5, atol=2e-6 * float(wanted.abs().max()))
        assert torch.equal(one, other)


@pytest.mark.parametrize(("size", "window"), [(112, 3), (28, 5), (7, 5)])
def test_sums_of_many_images_round_no_worse_than_those_of_eager(size: int, window: int) -> None:
    found, exact, eager = gradients_of((8, 32, (size, size), (window, window), 1, window // 2, 1), 2)
    for ours, wanted, theirs in zip(found, exact, eager, strict=True):
        assert (ours.double() - wanted).abs().max() <= 2 * (theirs.double() - wanted).abs().max()


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_are_added_to_others_and_gated_as_they_are_made(stride: int) -> None:
    x, weight, exact, shape = layers_of((2, 24, 24, 24, (9, 10), (3, 3), stride, 1, 1))
    dy, addend, gate = torch.randn(exact.shape), torch.randn(x.shape), torch.randn(x.shape)
    plan = MiniPlanner()
    dx = plan.scratch(blocked_layout.blocked_shape(x.shape))
    ending = Ending(addend=blocked(plan, addend), gate=blocked(plan, gate))
    depthwise_blocked.emit_input_gradient(plan, shape, dx, blocked(plan, dy), plan.hold(weight), ending)
    wanted = conv2d_input(x.shape, weight.double(), dy.double(), stride, 1, 1, 24) + addend.double()
    wanted[gate <= 0] = 0
    torch.testing.assert_close(plain(plan, dx, x.shape).double(), wanted, rtol=1e-5, atol=1e-5)
