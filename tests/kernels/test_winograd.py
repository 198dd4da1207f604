"""Convolutions by Winograd's F(2x2, 3x3), against float64 torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.test_conv_blocked import ACTIVATIONS, blocked, layers_of, plain
from torchipu._kernels.table.conv_blocked import Activation
from torchipu.host.emit import blocked_layout, conv_blocked, winograd
from torchipu.host.emit.conv_shape import Shape

# images, groups, channels, results, size, window, stride, padding, dilation
CASES = [
    (2, 1, 5, 33, (9, 11), (3, 3), 1, 1, 1),  # odd channels and sizes
    (3, 1, 40, 64, (16, 16), (3, 3), 1, 1, 1),
    (1, 1, 300, 24, (7, 7), (3, 3), 1, 1, 1),  # several chunks of channels
    (9, 1, 16, 130, (7, 7), (3, 3), 1, 1, 1),  # an item spans images
    (2, 1, 24, 40, (10, 12), (3, 3), 1, 0, 1),  # no padding
    (1, 1, 8, 8, (1, 1), (3, 3), 1, 1, 1),
    (1, 1, 6, 10, (3, 5), (3, 3), 1, 4, 1),  # tiles wholly in the padding
    (2, 1, 9, 12, (6, 8), (3, 3), 1, (2, 0), 1),  # padding of rows alone
]


def computed(plan: MiniPlanner, case: tuple, ending: conv_blocked.Ending) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a plan gives for a case, and the exact result without its ending."""
    x, weight, exact, shape = layers_of(case)
    assert winograd.serves(shape)
    out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
    winograd.emit(plan, shape, out, blocked(plan, x), plan.hold(weight), ending)
    return plain(plan, out, exact.shape), exact


@pytest.mark.parametrize("case", CASES)
def test_convolutions_equal_float64_for_any_number_of_threads(case: tuple) -> None:
    found, exact = computed(MiniPlanner(1), case, conv_blocked.Ending())
    again, _ = computed(MiniPlanner(3), case, conv_blocked.Ending())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=4e-6 * float(exact.abs().max()))
    assert torch.equal(found, again)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", CASES[:2])
def test_endings_equal_float64(case: tuple, activation: Activation) -> None:
    plan, bias = MiniPlanner(2), torch.randn(case[3])
    _, _, exact, _ = layers_of(case)
    other = torch.randn(exact.shape)
    ending = conv_blocked.Ending(bias=plan.hold(bias), addend=blocked(plan, other), activation=activation)
    found, exact = computed(plan, case, ending)
    wanted = ACTIVATIONS[activation](exact + bias.double()[:, None, None] + other.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [64, 512])
def test_the_error_is_a_few_times_that_of_eager(channels: int) -> None:
    case = (1, 1, channels, 64, (14, 14), (3, 3), 1, 1, 1)
    found, exact = computed(MiniPlanner(), case, conv_blocked.Ending())
    x, weight, _, _ = layers_of(case)
    error = (found.double() - exact).abs().max()
    eager = (F.conv2d(x, weight, None, 1, 1).double() - exact).abs().max()
    assert error <= 6 * eager
    assert error <= 2e-6 * exact.abs().max()


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_the_input_equal_float64(case: tuple) -> None:
    x, weight, exact, shape = layers_of(case)
    dy, other, gate = torch.randn(exact.shape), torch.randn(x.shape), torch.randn(x.shape)
    plan = MiniPlanner(2)
    dx = plan.scratch(blocked_layout.blocked_shape(x.shape))
    ending = conv_blocked.Ending(addend=blocked(plan, other), gate=blocked(plan, gate))
    winograd.emit_input_gradient(plan, shape, dx, blocked(plan, dy), plan.hold(weight), ending)
    wanted = torch.nn.grad.conv2d_input(x.shape, weight.double(), dy.double(), 1, case[7])
    wanted = torch.where(gate > 0, wanted + other.double(), 0)
    found = plain(plan, dx, x.shape).double()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=4e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("change", [{"sh": 2}, {"dw": 2}, {"kh": 5}, {"g": 2}, {"n": 0}])
def test_other_convolutions_are_not_served(change: dict[str, int]) -> None:
    sizes = dict.fromkeys(("ic", "oc", "h", "w", "oh", "ow"), 8)
    sizes |= {"n": 1, "g": 1, "kh": 3, "kw": 3, "sh": 1, "sw": 1, "ph": 1, "pw": 1, "dh": 1, "dw": 1}
    assert winograd.serves(Shape(**sizes))
    assert not winograd.serves(Shape(**{**sizes, **change}))


def test_few_channels_or_results_do_not_pay_for_the_transforms() -> None:
    def shape(channels: int, results: int) -> Shape:
        return Shape(1, 1, channels, results, 56, 56, 56, 56, 3, 3, 1, 1, 1, 1, 1, 1)

    assert winograd.saved_ns(shape(128, 128)) > 0
    assert winograd.saved_ns(shape(8, 128)) < 0
    assert winograd.saved_ns(shape(16, 8)) < 0


def test_weights_packed_in_each_call_pay_for_the_transforms_of_many_pixels_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(winograd, "vector_lanes", lambda: 16)

    def shape(images: int) -> Shape:
        return Shape(images, 1, 512, 512, 7, 7, 7, 7, 3, 3, 1, 1, 1, 1, 1, 1)

    assert winograd.saved_ns(shape(1)) > 0
    assert winograd.saved_ns(shape(1), packs_ahead=False) < 0 < winograd.saved_ns(shape(8), packs_ahead=False)
