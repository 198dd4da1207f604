"""Interpolation and paddings between convolutions are computed in blocks, and give what eager PyTorch gives."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchipu
from tests.host.planned import planned_kernels

INF = float("inf")
BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "the nearest, twice as many": lambda x: F.interpolate(x, scale_factor=2),
    "the nearest of other sizes": lambda x: F.interpolate(x, size=(23, 9)),
    "the nearest, exactly": lambda x: F.interpolate(x, size=(11, 31), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear with aligned corners": lambda x: F.interpolate(x, size=(17, 5), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "bilinear, smoothed": lambda x: F.interpolate(x, size=(7, 6), mode="bilinear", antialias=True),
    "bicubic, smoothed": lambda x: F.interpolate(x, size=(7, 19), mode="bicubic", antialias=True),
    "zeros behind": lambda x: F.pad(x, (0, 1, 0, 1)),
    "a number around, and a part cut off": lambda x: F.pad(x, (-1, 2, 3, -2), value=1.5),
    "nothing but columns": lambda x: F.pad(x, (2, 1)),
    "what no maximum is of": lambda x: F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-INF), 3, 2),
    "reflections": lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect"),
    "repetitions": lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"),
}
CONVERSIONS = {"to_blocked", "from_blocked"}


class Net(nn.Module):
    """Convolutions of images `[N, 16, 14, 10]` with something between them; 40 channels fill no block whole."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 40, 3, padding=1), nn.Conv2d(40, 16, 3, padding=1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(F.relu(self.first(x))))


def trained(model: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the result and all gradients."""
    x = x.clone().requires_grad_()
    result = call(x)
    gradients = torch.autograd.grad(result.square().sum(), [x, *model.parameters()])
    return result.detach().double(), [gradient.double() for gradient in gradients]


@pytest.mark.whole
@pytest.mark.parametrize("name", BETWEEN)
def test_training_equals_float64(name: str) -> None:
    torch.manual_seed(0)
    model, x = Net(BETWEEN[name]), torch.randn(2, 16, 14, 10)
    torch._dynamo.reset()
    found, gradients = trained(model, torch.compile(model, backend="ipu"), x)
    exact = copy.deepcopy(model).double()
    expected, exact_gradients = trained(exact, exact, x.double())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for gradient, right in zip(gradients, exact_gradients, strict=True):
        assert (gradient - right).norm() <= 1e-5 * right.norm()


@pytest.mark.whole
@pytest.mark.parametrize("name", BETWEEN)
def test_nothing_is_brought_back_between_convolutions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planned_kernels(monkeypatch)
    torch.manual_seed(0)
    model, x = Net(BETWEEN[name]), torch.randn(2, 16, 14, 10)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend="ipu", options={"frozen_weights": True})(x)
    computed = [kernel for kernel in names if kernel in CONVERSIONS or kernel.startswith("conv_")]
    first, last = (computed.index("conv_blocked"), len(computed) - 1 - computed[::-1].index("conv_blocked"))
    assert first < last
    assert not CONVERSIONS & set(computed[first:last])


@pytest.mark.parametrize("name", ["the nearest, twice as many", "bilinear", "zeros behind", "reflections"])
def test_halves_are_those_of_eager(name: str) -> None:
    # Integers in halves: sums of them are exact, in whatever order.
    torch.manual_seed(0)
    model = Net(BETWEEN[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
    x = torch.randint(-1, 2, (2, 16, 14, 10)).float()
    with torch.no_grad():
        middle = BETWEEN[name](F.relu(model.first(x)).half().float()).half().float()
        expected = model.last(middle)
        found = torchipu.InferenceStep(model.half())(x.half())
    torch.testing.assert_close(found.float(), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("name", ["the nearest of other sizes", "bicubic", "repetitions"])
def test_the_bits_do_not_depend_on_threads(name: str) -> None:
    found = []
    for threads in (1, 3):
        torch.manual_seed(0)
        model, x = Net(BETWEEN[name]), torch.randn(2, 16, 14, 10)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="ipu", options={"host_threads": threads})
        result, gradients = trained(model, compiled, x)
        found.append([result, *gradients])
    assert all(map(torch.equal, *found))
