"""What stands between convolutions in blocks: what is computed there, what only looks as if it could be, and values."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.host.planned import planned_kernels

CHANNELS, SIZE = 64, 14
Between = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Convolutions of images `[N, 24, 14, 14]`, and something between them."""

    def __init__(self, between: Between, channels: int = CHANNELS) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(24, CHANNELS, 3, padding=1), nn.Conv2d(channels, CHANNELS, 3, padding=1)
        self.plain_norm = nn.BatchNorm2d(CHANNELS, affine=False)
        nn.init.uniform_(self.plain_norm.running_var, 0.5, 2)
        self.weight, self.bias = nn.Parameter(torch.randn(CHANNELS, CHANNELS) / 8), nn.Parameter(torch.randn(CHANNELS))
        self.scale = nn.Parameter(torch.rand(CHANNELS, 1, 1) + 0.5)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(x)))


def tokens_of(x: Tensor, follow: Callable[[Tensor], Tensor]) -> Tensor:
    """See images as tokens, and what becomes of these as images again."""
    return follow(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)


BETWEEN: dict[str, Between] = {
    "rows of images are taken": lambda net, x: x[:, :, 2:11],
    "no rows of images are taken": lambda net, x: torch.cat([x, x[:, :, 3:3]], 2),
    "channels are taken": lambda net, x: x[:, 16:32],
    "no channels are taken": lambda net, x: torch.cat([x, x[:, 5:5]], 1),
    "channels are taken of a mask": lambda net, x: x.roll(1, 1) * (x > 0)[:, :1].to(x.dtype) + x,
    "images are put beside each other": lambda net, x: torch.cat([x, x.tanh()], 2),
    "means of rows": lambda net, x: x * x.mean((1, 2), keepdim=True),
    "an activation of an activation": lambda net, x: torch.tanh(torch.sigmoid(x)),
    "a sum behind an activation": lambda net, x: torch.sigmoid(x) + x,
    "a norm without factors behind a pool": lambda net, x: net.plain_norm(F.max_pool2d(x, 3, 1, 1)),
    "a factor of each channel": lambda net, x: x * net.scale,
    "a factor of each row of an image": lambda net, x: x * net.scale[:SIZE].reshape(1, 1, SIZE, 1),
    "tokens times a matrix": lambda net, x: tokens_of(x, lambda tokens: tokens @ net.weight),
    "tokens times a matrix and a bias": lambda net, x: tokens_of(x, lambda tokens: tokens @ net.weight + net.bias),
    "tokens times a matrix and an image by a factor": lambda net, x: (
        tokens_of(x, lambda tokens: tokens @ net.weight) * net.scale
    ),
    "tokens times a matrix, an activation and a factor": lambda net, x: (
        tokens_of(x, lambda tokens: torch.sigmoid(tokens @ net.weight) * net.bias)
    ),
    "tokens times a matrix, an activation and a sum": lambda net, x: (
        tokens_of(x, lambda tokens: torch.sigmoid(tokens @ net.weight) + tokens)
    ),
    "tokens times a matrix and two activations": lambda net, x: (
        tokens_of(x, lambda tokens: F.silu(torch.sigmoid(tokens @ net.weight)))
    ),
    "a linear layer of tokens": lambda net, x: tokens_of(x, lambda tokens: F.linear(tokens, net.weight, net.bias)),
    "tokens are taken": lambda net, x: (
        (x.flatten(2).transpose(1, 2) @ net.weight)[:, 14:154].transpose(1, 2).reshape(-1, CHANNELS, 10, SIZE)
    ),
    "channels are taken of a mask and of what it is of": lambda net, x: (
        torch.cat([x[:, :32], (x > 0)[:, 32:].to(x.dtype)], 1)
    ),
    "a pool over the channels of rows": lambda net, x: (
        F.max_pool2d(x.permute(0, 2, 3, 1), (1, 3), 1, (0, 1)).permute(0, 3, 1, 2)
    ),
    "a norm over groups and an activation": lambda net, x: F.silu(F.group_norm(x, 8, net.bias, net.scale.flatten())),
    "means of planes": lambda net, x: x * x.mean((2, 3), keepdim=True),
    "tokens times a matrix, twice, and a bias": lambda net, x: tokens_of(x, lambda tokens: torch.addmm(
        net.bias, tokens.flatten(0, 1), net.weight, alpha=2,
    ).view(tokens.shape)),
    "tokens times a matrix and half a bias": lambda net, x: tokens_of(x, lambda tokens: torch.addmm(
        net.bias, tokens.flatten(0, 1), net.weight, beta=0.5,
    ).view(tokens.shape)),
}


def compiled_and_exact(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch,
) -> tuple[Tensor, Tensor, list[str]]:
    """Return what a model with frozen weights gives, that in float64, and the names of the kernels."""
    names = planned_kernels(monkeypatch)
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(model, backend="ipu", options={"frozen_weights": True})(x)
        return found, copy.deepcopy(model).double()(x.double()), names


@pytest.mark.whole
@pytest.mark.parametrize("name", BETWEEN)
def test_what_stands_between_convolutions_equals_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Net(BETWEEN[name], 16 if name == "channels are taken" else CHANNELS).eval()
    found, exact, _ = compiled_and_exact(model, torch.randn(2, 24, SIZE, SIZE), monkeypatch)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.whole
def test_an_image_without_a_batch_is_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Net(lambda net, x: F.max_pool2d(x, 2)).eval()
    found, exact, _ = compiled_and_exact(model, torch.randn(24, SIZE, SIZE), monkeypatch)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.whole
@pytest.mark.parametrize("name", [
    "tokens times a matrix", "tokens times a matrix and a bias", "tokens times a matrix and an image by a factor",
    "means of planes", "channels are taken", "a norm over groups and an activation",
])
def test_what_can_be_in_blocks_leaves_them_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Net(BETWEEN[name], 16 if name == "channels are taken" else CHANNELS).eval()
    found, exact, names = compiled_and_exact(model, torch.randn(8, 24, SIZE, SIZE), monkeypatch)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
    assert (names.count("to_blocked"), "chain" in names, names.count("from_blocked") <= 1) == (1, False, True), names


def test_a_linear_layer_of_tokens_is_a_convolution_with_its_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Net(BETWEEN["a linear layer of tokens"]).eval()
    found, exact, names = compiled_and_exact(model, torch.randn(8, 24, SIZE, SIZE), monkeypatch)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
    computed = [name for name in names if not name.startswith(("fold", "pack"))]
    assert computed[:-1] == ["to_blocked", "winograd", "conv_blocked", "winograd"], names
