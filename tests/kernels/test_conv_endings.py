"""What a product of a convolution does to its sums at last, against float64 torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.elem_planner import MiniPlanner
from torchipu._kernels.table.conv_product import ConvEnding
from torchipu.host.emit import conv_product, pixel_product
from torchipu.host.emit.conv_shape import Shape

# images, input channels, output channels, size, window, stride, padding
CASES = [
    (2, 5, 33, (9, 11), 3, 1, 1),
    (3, 40, 64, (16, 16), 1, 1, 0),  # panels that lie side by side where they are stored
    (5, 32, 45, (7, 7), 3, 2, 1),
    (2, 310, 97, (6, 7), 3, 1, 1),
    (1, 33, 32, (13, 5), 1, 2, 0),
]


def sizes_of(case: tuple) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Shape]:
    """Return an input, weights, something like the output, and the sizes."""
    n, ic, oc, (h, w), window, stride, padding = case
    torch.manual_seed(3)
    x, weight = torch.randn(n, ic, h, w), torch.randn(oc, ic, window, window)
    y = F.conv2d(x, weight, None, stride, padding)
    shape = Shape(n, 1, ic, oc, h, w, *y.shape[2:], window, window, stride, stride, padding, padding, 1, 1)
    return x, weight, torch.randn_like(y), shape


@pytest.mark.parametrize("ending", ["bias", "relu", "norm", "addend", "all"])
@pytest.mark.parametrize("case", CASES)
def test_endings_of_a_convolution_equal_float64(case: tuple, ending: str) -> None:
    x, weight, other, shape = sizes_of(case)
    bias, mean, variance, scale, shift = (torch.randn(shape.oc) for _ in range(5))
    variance = variance.abs() + 0.5
    everything = ending == "all"
    exact = F.conv2d(x.double(), weight.double(), None, shape.sh, shape.ph)
    flags = 0
    if everything or ending == "bias":
        exact = exact + bias.double()[:, None, None]
    if everything or ending == "norm":
        exact = F.batch_norm(exact, mean.double(), variance.double(), scale.double(), shift.double(), eps=1e-3)
        flags |= ConvEnding.HAS_NORM | ConvEnding.HAS_NORM_WEIGHT | ConvEnding.HAS_NORM_BIAS
    if everything or ending == "addend":
        exact = exact + other.double()
    if everything or ending == "relu":
        exact = exact.relu()
        flags |= ConvEnding.IS_RELU
    found = []
    for threads in (1, 3):
        plan = MiniPlanner(threads)
        out = plan.scratch(exact.shape)
        conv_product.emit_product(
            plan, pixel_product.forward_product(shape), out, plan.hold(x), plan.hold(weight),
            bias=plan.hold(bias) if everything or ending == "bias" else None,
            norm=[plan.hold(t) for t in (mean, variance, scale, shift)] if flags & ConvEnding.HAS_NORM else [],
            addend=plan.hold(other) if everything or ending == "addend" else None, flags=flags, epsilon=1e-3,
        )
        found.append(plan.fetch(out).clone())
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-4, atol=1e-4)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_endings_of_the_gradient_of_the_input_equal_float64(case: tuple, adds: bool) -> None:
    x, weight, dy, shape = sizes_of(case)
    if not conv_product.serves_input(shape):
        x, weight, dy, shape = sizes_of((shape.n, 32, *case[2:]))
    gate, addend = torch.randn_like(x), torch.randn_like(x)
    gate.view(-1)[::7] = 0.0
    gate.view(-1)[3] = float("nan")  # eager passes the gradient on
    strides, pads = [shape.sh] * 2, [shape.ph] * 2
    exact = torch.ops.aten.convolution_backward(
        dy.double(), x.double(), weight.double(), None, strides, pads, [1, 1], False, [0, 0], 1, [True, False, False],
    )[0]
    exact = torch.ops.aten.threshold_backward(exact + addend.double() if adds else exact, gate.double(), 0)
    found = []
    for threads in (1, 3):
        plan = MiniPlanner(threads)
        out = plan.scratch(x.shape)
        held = [plan.hold(t) for t in (dy, weight, addend, gate)]
        for product in pixel_product.input_products(shape):
            conv_product.emit_product(
                plan, product, out, *held[:2], addend=held[2] if adds else None, gate=held[3],
            )
        found.append(plan.fetch(out).clone())
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-4, atol=1e-4)
    assert torch.equal(found[0], found[1])
