"""Weights that have their channels last are read as they lie, by all kernels of convolutions and their gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.host.planned import planned_kernels


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "three by three": (nn.Conv2d(35, 50, 3, padding=1), (2, 35, 9, 7)),
    "three by three of whole blocks": (nn.Conv2d(64, 64, 3, padding=1), (2, 64, 14, 14)),
    "many channels of few pixels": (nn.Conv2d(192, 96, 3, padding=1), (1, 192, 4, 4)),
    "strides": (nn.Conv2d(32, 48, 3, stride=2, padding=1), (2, 32, 15, 15)),
    "five by three with dilation": (nn.Conv2d(20, 40, (5, 3), dilation=(1, 2), padding=2), (2, 20, 12, 12)),
    "groups": (nn.Conv2d(96, 64, 3, padding=1, groups=2), (2, 96, 8, 8)),
    "one result for each group": (nn.Conv2d(32, 8, 3, padding=1, groups=8), (2, 32, 12, 12)),
    "few results": (nn.Conv2d(40, 7, 3), (2, 40, 9, 9)),
    "whole images": (nn.Conv2d(16, 33, (4, 5)), (3, 16, 4, 5)),
    "transposed": (nn.ConvTranspose2d(48, 40, 4, stride=2, padding=1), (2, 48, 7, 7)),
    "transposed groups": (nn.ConvTranspose2d(64, 96, 3, groups=2), (2, 64, 6, 6)),
    "with norm and activation": (
        nn.Sequential(nn.Conv2d(33, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()), (2, 33, 14, 14),
    ),
    "several": (
        nn.Sequential(nn.Conv2d(24, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 72, 3, padding=1), nn.ReLU(),
                      nn.Conv2d(72, 40, 3, stride=2)), (2, 24, 14, 14),
    ),
}


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_results_and_gradients_equal_float64(name: str, trains: bool) -> None:
    module, shape = CONVOLUTIONS[name]
    torch.manual_seed(3)
    module = copy.deepcopy(module).to(memory_format=torch.channels_last).train(trains)
    exact = copy.deepcopy(module).double()
    x = torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_(trains)
    wide = x.detach().double().requires_grad_(trains)
    with torch.set_grad_enabled(trains):
        got, expected = torch.compile(module, backend="ipu")(x), exact(wide)
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=2e-5)
    if trains:
        gradient = torch.randn(expected.shape)
        got.backward(gradient)
        expected.backward(gradient.double())
        pairs = [(x, wide), *zip(module.parameters(), exact.parameters(), strict=True)]
        for value, other in pairs:
            assert value.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(value.grad.double(), other.grad, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["three by three", "strides", "many channels of few pixels", "several"])
def test_weights_are_not_turned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many values are brought into another order as with row-major weights."""
    module, shape = CONVOLUTIONS[name]
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    turned = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch._dynamo.reset()
        kernels = planned_kernels(monkeypatch)
        with torch.no_grad():
            torch.compile(copy.deepcopy(module).to(memory_format=layout), backend="ipu")(x)
        turned.append(sum(kernel in ("transpose", "copy") for kernel in kernels))
    assert turned[1] <= turned[0]


def test_what_comes_and_goes_with_channels_last_is_not_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution that would not pay between row-major values does between such."""
    convolution = nn.Conv2d(64, 128, 1)
    x, found = torch.randn(4, 64, 28, 28), []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch._dynamo.reset()
        kernels = planned_kernels(monkeypatch)
        with torch.no_grad():
            module = copy.deepcopy(convolution).to(memory_format=layout)
            torch.compile(module, backend="ipu")(x.to(memory_format=layout))
        found.append(set(kernels))
    plain, last = found
    assert "conv_product" in plain
    assert not plain & {"transpose", "to_blocked", "from_blocked"}
    assert "conv_blocked" in last
    assert not last & {"transpose", "to_blocked", "from_blocked"}
