"""Images whose planes become tokens, and tokens that become images again, with channels in blocks all the while."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchipu
from tests.host.planned import planned_kernels
from tests.host.test_layouts import note_layouts


class Patches(nn.Module):
    """Patches of an image as tokens, normalised, and back: ``[N, 3, 4 H, 4 W]`` to ``[N, C, H, W]``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.embed, self.norm = nn.Conv2d(3, channels, 7, 4, 3), nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.embed(x)
        return self.norm(y.flatten(2).transpose(1, 2)).transpose(1, 2).view(y.shape)


class MixedPerceptron(nn.Module):
    """Two linear layers with a depthwise convolution between, which sees tokens as an image; tokens are added."""

    def __init__(self, channels: int, scale: float | None = None) -> None:
        super().__init__()
        self.norm, self.widen = nn.LayerNorm(channels), nn.Linear(channels, 4 * channels)
        self.deep = nn.Conv2d(4 * channels, 4 * channels, 3, padding=1, groups=4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.scale = None if scale is None else nn.Parameter(scale * torch.rand(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, channels, height, width = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        y = self.widen(self.norm(tokens)).transpose(1, 2).view(images, 4 * channels, height, width)
        y = self.narrow(F.gelu(self.deep(y).flatten(2).transpose(1, 2)))
        y = tokens + (y if self.scale is None else y * self.scale)
        return y.permute(0, 2, 1).reshape(images, channels, height, width)


class Reduced(nn.Module):
    """Attention of all tokens to those of a smaller image."""

    def __init__(self, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.reduce = heads, nn.Conv2d(channels, channels, window, window)
        self.norm, self.inner = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.query, self.both = nn.Linear(channels, channels), nn.Linear(channels, 2 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, channels, height, width = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        y = self.norm(tokens)
        query = self.query(y).reshape(images, -1, self.heads, channels // self.heads).transpose(1, 2)
        y = self.reduce(y.permute(0, 2, 1).reshape(x.shape)).reshape(images, channels, -1).permute(0, 2, 1)
        both = self.both(self.inner(y)).reshape(images, -1, 2, self.heads, channels // self.heads)
        key, value = both.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(images, -1, channels)
        return (tokens + self.out(y)).transpose(1, 2).reshape(images, channels, height, width)


class Interacting(nn.Module):
    """Tokens among which two depthwise convolutions act, with what is added to channels, times numbers of these."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm, self.scale = nn.BatchNorm2d(channels), nn.Parameter(torch.rand(channels))
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.line = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.line(x.flatten(2).transpose(1, 2))
        y = self.second(self.norm(F.gelu(self.first(tokens.permute(0, 2, 1).reshape(x.shape)))))
        y = tokens + self.scale * y.flatten(2).permute(0, 2, 1)
        return self.line(y).permute(0, 2, 1).reshape(x.shape)


class TokenMixing(nn.Module):
    """A linear layer over the places of an image, of each channel: planes of one dimension are read as such."""

    def __init__(self, channels: int, places: int) -> None:
        super().__init__()
        self.conv, self.mix = nn.Conv2d(16, channels, 3, padding=1), nn.Linear(places, places)
        self.line, self.last = nn.Linear(channels, channels), nn.Conv2d(channels, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        flat = self.conv(x).flatten(2)
        y = flat.transpose(1, 2) + self.mix(flat).transpose(1, 2)
        turned = self.line(y).transpose(1, 2)
        return self.last(turned.reshape(x.shape[0], -1, *x.shape[2:])), flat, torch.tanh(turned)


class Reshaped(nn.Module):
    """Tokens of an image that are shown as one of other sides, as large."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)
        self.line = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, _, height, width = x.shape
        tokens = self.line(F.relu(self.first(x)).flatten(2).transpose(1, 2))
        return self.second(tokens.transpose(1, 2).reshape(images, -1, height // 2, width * 2))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "stage": (lambda: nn.Sequential(
        Patches(32), Reduced(32, 2, 2), MixedPerceptron(32), MixedPerceptron(32), nn.Conv2d(32, 24, 1),
    ), (2, 3, 48, 40)),
    "odd": (lambda: nn.Sequential(Patches(21), MixedPerceptron(21, 0.5), nn.Conv2d(21, 40, 3)), (3, 3, 44, 36)),
    "as-many-tokens-as-channels": (lambda: nn.Sequential(Patches(48), MixedPerceptron(48)), (2, 3, 32, 24)),
    "interacting": (lambda: nn.Sequential(nn.Conv2d(16, 40, 3), Interacting(40), Interacting(40)), (2, 16, 15, 13)),
    "token-mixing": (lambda: TokenMixing(48, 99), (2, 16, 11, 9)),
    "reshaped": (lambda: Reshaped(48), (2, 8, 12, 10)),
}


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_float64_for_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    make, size = CASES[name]
    model, x, made, found = make().eval().requires_grad_(False), torch.randn(size), note_layouts(monkeypatch), []
    exact = copy.deepcopy(model).double()(x.double())
    for threads in (1, 3):
        options = torchipu.Options(frozen_weights=True, allow_out_of_memory=True, host_threads=threads)
        found.append(torchipu.InferenceStep(model, options)(x))
    assert all(layouts.runs for layouts in made), "nothing was computed in blocks"
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    for ours, wanted in zip(*(v if isinstance(v, tuple) else (v,) for v in (found[0], exact)), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-5)


def test_tokens_between_a_convolution_and_linear_layers_move_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, made = planned_kernels(monkeypatch), note_layouts(monkeypatch)
    model = nn.Sequential(Patches(32), MixedPerceptron(32), MixedPerceptron(32, 0.5), nn.Conv2d(32, 32, 1))
    options = torchipu.Options(frozen_weights=True, allow_out_of_memory=True)
    torchipu.InferenceStep(model.eval().requires_grad_(False), options)(torch.randn(2, 3, 48, 40))
    # Sums of tokens alone are computed where these lie row-major.
    assert not {"transpose", "matmul", "layer_norm", "conv_product"} & set(kernels), kernels
    targets = [{op.target.split(".")[1] for op in run.ops} for run in made[0].runs.values()]
    assert sum({"convolution", "view", "transpose", "gelu"} <= names for names in targets) == 2, targets
    assert sum({"addmm", "view", "add"} <= names for names in targets) == 2, targets


def test_images_of_tokens_go_into_blocks_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without weights that are packed ahead too: tokens are images with their channels last."""
    kernels = planned_kernels(monkeypatch)
    deep, tokens = nn.Conv2d(64, 64, 3, padding=1, groups=64).requires_grad_(False), torch.randn(2, 12 * 14, 64)

    def seen_as_images(tokens: torch.Tensor) -> torch.Tensor:
        return deep(torch.tanh(tokens).transpose(1, 2).view(2, 64, 12, 14))

    found = torch.compile(seen_as_images, backend="ipu")(tokens)
    wanted = copy.deepcopy(deep).double()(tokens.double().tanh().transpose(1, 2).view(2, 64, 12, 14))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    assert "depthwise_blocked" in kernels, kernels
    assert not {"transpose", "to_blocked"} & set(kernels), kernels


def test_images_become_tokens_without_being_turned_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves the blocks, and its gradient, has its channels last where tokens alone are read of it."""
    kernels, model = planned_kernels(monkeypatch), MixedPerceptron(32)
    x = torch.randn(2, 32, 12, 14, requires_grad=True)
    exact, judge = x.detach().double().requires_grad_(), copy.deepcopy(model).double()
    torch.compile(model, backend="ipu")(x).square().sum().backward()
    judge(exact).square().sum().backward()
    pairs = [(x, exact), *zip(model.parameters(), judge.parameters(), strict=True)]
    for ours, wanted in pairs:
        torch.testing.assert_close(ours.grad.double(), wanted.grad, rtol=1e-4, atol=1e-4)
    assert {"depthwise_blocked", "depthwise_weight_blocked"} <= set(kernels), kernels
    assert "from_blocked" not in kernels, kernels


@pytest.mark.parametrize("read", ["beside", "kept"])
def test_images_that_others_read_too_leave_the_blocks_row_major(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, deep = planned_kernels(monkeypatch), nn.Conv2d(64, 64, 3, padding=1, groups=64).requires_grad_(False)
    x = torch.randn(2, 64, 12, 14)

    def tokens_and_images(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = deep(x)
        return torch.cumsum(y.flatten(2).transpose(1, 2), 1), y if read == "kept" else torch.cumsum(y, 3)

    found = torch.compile(tokens_and_images, backend="ipu")(x)
    for ours, wanted in zip(found, tokens_and_images(x), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
        assert ours.stride() == wanted.stride()
    assert "from_blocked" in kernels, kernels


class WholeTokens(nn.Module):
    """Weights and inputs such that float sums are exact, but no half holds them all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(20, 48, 3, padding=1), nn.Conv2d(40, 40, 3, padding=1, groups=40)
        self.line, self.narrow, self.scale = nn.Linear(48, 40), nn.Linear(40, 48), nn.Parameter(torch.rand(48))
        self.out = nn.Conv2d(48, 24, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-1, 2, parameter.shape))
            for layer in (self.first, self.line):
                layer.weight.copy_(torch.randint(-7, 8, layer.weight.shape) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        tokens = y.flatten(2).transpose(1, 2)
        z = self.deep(self.line(tokens).transpose(1, 2).view(y.shape[0], 40, *y.shape[2:]))
        z = tokens + self.narrow(F.relu(z.flatten(2).transpose(1, 2))) * self.scale
        return self.out(z.transpose(1, 2).reshape(y.shape))


@pytest.mark.parametrize("rounds", [False, True], ids=["nearest", "stochastic"])
def test_random_bits_of_tokens_are_those_of_row_major_values(rounds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    model, x = WholeTokens().eval().half().requires_grad_(False), (torch.randint(-8, 9, (3, 20, 10, 13)) / 8).half()
    made, results = note_layouts(monkeypatch), []
    for options in ({"host_threads": 1}, {"host_threads": 3}, {"frozen_weights": False}):
        given = {"frozen_weights": True, "allow_out_of_memory": True, "seed": 7} | options
        results.append(torchipu.InferenceStep(model, torchipu.Options(stochastic_rounding=rounds, **given))(x))
    assert all(len(layouts.runs) >= 3 for layouts in made[:2]), "the model was not computed in blocks"
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
