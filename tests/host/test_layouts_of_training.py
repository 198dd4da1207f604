"""Trainings whose convolutions and gradients are computed with channels in blocks, against float64 torch."""

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


class Residual(nn.Module):
    """A block that halves the image, with a projection beside it, and one that does not."""

    def __init__(self, channels: int, results: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, results, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(results, results, 3, padding=1, bias=False)
        self.third = nn.Conv2d(results, results, 3, padding=1, bias=False)
        self.beside = nn.Conv2d(channels, results, 1, 2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(results) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        y = F.relu(y + self.norms[2](self.beside(x)))
        return F.relu(self.norms[3](self.third(y)) + y)


class Dense(nn.Module):
    """Channels that are concatenated, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(40, 56, 3, padding=1), nn.Conv2d(96, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.norm(torch.cat([x, self.first(x)], 1))))


class Grouped(nn.Module):
    """Groups that fill blocks on every machine, between products of single pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(48, 128, 1, bias=False), nn.Conv2d(128, 48, 1)
        self.middle = nn.Conv2d(128, 128, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(F.relu(self.middle(F.relu(self.norm(self.first(x))))))


class Across(nn.Module):
    """Down and up again, as a U-Net does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(32, 48, 3, padding=1), nn.Conv2d(48, 64, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(64, 48, 2, 2), nn.Conv2d(96, 40, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(x))
        deep = F.relu(self.deep(F.max_pool2d(y, 2)))
        return self.last(torch.cat([y, self.up(deep)], 1))


class Up(nn.Module):
    """Transposed convolutions: phases of one and of several taps, some of none, with transforms, dilated, grouped."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([
            nn.ConvTranspose2d(96, 64, 4, 2, 1, bias=False), nn.ConvTranspose2d(64, 80, 3, 1, 1),
            nn.ConvTranspose2d(80, 32, 3, 2, 1, output_padding=(1, 0)),
            nn.ConvTranspose2d(32, 64, 1, 2, groups=2), nn.ConvTranspose2d(64, 40, 3, 1, 2, dilation=2),
            nn.ConvTranspose2d(40, 48, 3, 1, 3),
        ])
        self.norms = nn.ModuleList(nn.BatchNorm2d(layer.out_channels) for layer in self.layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(x)))
        return x


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "up": (lambda: nn.Sequential(nn.Conv2d(3, 96, 3, 1, 1), Up()), (3, 3, 9, 8)),
    "residual": (lambda: nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), Residual(64, 96)), (4, 3, 49, 41)),
    "dense": (lambda: nn.Sequential(nn.Conv2d(3, 40, 5, 1, 2), Dense()), (3, 3, 24, 22)),
    "grouped": (lambda: nn.Sequential(nn.Conv2d(3, 48, 4, 4), Grouped(), Grouped()), (4, 3, 80, 72)),
    "across": (lambda: nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), Across()), (2, 3, 32, 32)),
}


def gradients_of(
    model: nn.Module, called: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> list[torch.Tensor]:
    """Return the result, and the gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    y = called(x)
    (y * torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype)).square().mean().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_float64_for_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, size = CASES[name]
    torch.manual_seed(4)
    model, x, made, found = make(), torch.randn(size), note_layouts(monkeypatch), []
    double = copy.deepcopy(model).double()
    exact = gradients_of(double, double, x.double())
    eager_model = copy.deepcopy(model)
    eager = gradients_of(eager_model, eager_model, x)
    for threads in (1, 3):
        torch._dynamo.reset()
        ours = copy.deepcopy(model)
        options = {"allow_out_of_memory": True, "host_threads": threads}
        found.append(gradients_of(ours, torch.compile(ours, backend="ipu", options=options), x))
    assert all(layouts.runs for layouts in made), "nothing was computed in blocks"
    for mine, again, theirs, wanted in zip(*found, eager, exact, strict=True):
        assert torch.equal(mine, again)
        scale = float(wanted.abs().max())
        error, least = float((mine - wanted).abs().max()), float((theirs - wanted).abs().max())
        assert error <= 6 * least + 2e-6 * scale


def test_transposed_convolutions_have_kernels_for_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    model, kernels = nn.Sequential(nn.Conv2d(3, 96, 3, 1, 1), Up()), planned_kernels(monkeypatch)
    frozen = torchipu.InferenceStep(model.eval().requires_grad_(False), torchipu.Options(frozen_weights=True))
    x = torch.randn(3, 3, 9, 8)
    found, wanted = frozen(x), copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
    assert {"conv_product", "conv_input", "to_blocked"}.isdisjoint(kernels), kernels
    assert kernels.count("from_blocked") == 1, kernels
    gradients_of(model.train(), torch.compile(model.requires_grad_(), backend="ipu"), x)
    assert kernels.count("conv_weight_blocked") >= 2, kernels


@pytest.mark.parametrize("strict", [False, True])
def test_a_whole_step_trains_as_eager_does(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    body = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), Residual(64, 96), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    made = note_layouts(monkeypatch)

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = copy.deepcopy(body)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).square().mean()

    model, double = WithLoss(), WithLoss().double()
    xs = torch.randn(3, 4, 3, 40, 40)
    options = torchipu.Options(allow_out_of_memory=True, strict_numerics=strict)
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options=options)
    optimiser = torch.optim.SGD(double.parameters(), lr=0.1)
    for x in xs:
        step(x)
        optimiser.zero_grad()
        double(x.double()).backward()
        optimiser.step()
    assert all(layouts.runs for layouts in made)
    for ours, wanted in zip(model.state_dict().values(), double.state_dict().values(), strict=True):
        torch.testing.assert_close(ours.double(), wanted.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [3, 5, 8])
def test_both_gradients_of_an_image_that_is_its_own_kernel_are_added_once_they_are_there(size: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(size, size, size, size, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    torch.nn.functional.conv2d(exact, exact, padding=1).square().sum().backward()
    compiled = torch.compile(lambda x: torch.nn.functional.conv2d(x, x, padding=1), backend="ipu")
    compiled(x).square().sum().backward()
    assert x.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=1e-5 * float(exact.grad.abs().max()))
