"""Norms, sums and activations in any order behind a convolution in blocks, and behind a depthwise one after it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.host.planned import planned_kernels

CHANNELS = 64
FOLLOWING = ("norm", "sum", "relu", "sigmoid")
ORDERS = [
    *itertools.product(FOLLOWING, repeat=2), ("norm", "sum", "relu"), ("norm", "relu", "sum"), ("sum", "norm", "relu"),
    ("sum", "relu", "norm"), ("norm", "norm", "relu"), ("sum", "sum", "relu"),
]
"""Words of what follows, one after another: all pairs, and some of three of which a convolution ends with a part."""


def norm() -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(CHANNELS)
    for values, low, high in ((made.running_mean, -1, 1), (made.running_var, 0.5, 2), (made.weight, 0.5, 2)):
        nn.init.uniform_(values, low, high)
    return made.eval()


class Followed(nn.Module):
    """A convolution of images, then ops in an order; after one of a pixel a depthwise one with such ops again."""

    def __init__(self, channels: int, order: tuple[str, ...], goes_deep: bool) -> None:
        super().__init__()
        kernel = 1 if goes_deep else 3
        self.conv = nn.Conv2d(channels, CHANNELS, kernel, padding=kernel // 2)
        self.deep = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS) if goes_deep else None
        self.order, self.norms = order, nn.ModuleList(norm() for _ in order)

    def forward(self, x: Tensor, others: list[Tensor]) -> Tensor:
        x = self._follow(self.conv(x), others)
        return x if self.deep is None else self._follow(self.deep(x), others[::-1])

    def _follow(self, x: Tensor, others: list[Tensor]) -> Tensor:
        for word, made, other in zip(self.order, self.norms, others, strict=False):
            if word == "norm":
                x = made(x)
            elif word == "sum":
                x = x + other
            else:
                x = F.relu(x) if word == "relu" else torch.sigmoid(x)
        return x


class Side(nn.Module):
    """All orders side by side, over one image `[N, 24, H, W]`; what is added has been made in blocks as well."""

    def __init__(self, goes_deep: bool) -> None:
        super().__init__()
        self.stems = nn.ModuleList(nn.Conv2d(24, CHANNELS, 3, padding=1) for _ in range(3))
        self.branches = nn.ModuleList(Followed(24, order, goes_deep) for order in ORDERS)

    def forward(self, x: Tensor) -> list[Tensor]:
        others = [stem(x) for stem in self.stems]
        return [branch(x, others) for branch in self.branches]


@pytest.mark.whole
@pytest.mark.parametrize("goes_deep", [False, True], ids=["three by three", "depthwise after a pixel"])
def test_what_follows_equals_float64(goes_deep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Side(goes_deep).eval(), torch.randn(8 if goes_deep else 2, 24, 14, 14)
    names = planned_kernels(monkeypatch)
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(model, backend="ipu", options={"frozen_weights": True, "allow_out_of_memory": True})(x)
        wanted = copy.deepcopy(model).double()(x.double())
    in_blocks = sum(name in ("conv_blocked", "winograd", "depthwise_blocked", "pointwise_depthwise") for name in names)
    assert in_blocks >= len(ORDERS) + 3
    assert ("pointwise_depthwise" in names) == goes_deep
    for order, ours, exact in zip(ORDERS, found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4, msg=lambda text, o=order: f"{o}: {text}")


@pytest.mark.whole
@pytest.mark.parametrize("follows", [lambda w: w, torch.sigmoid], ids=["as it is", "activated"])
def test_a_convolution_of_a_pixel_that_makes_the_weights_of_a_depthwise_one(
    follows: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The depthwise one reads it, and not as an image: it does not go on behind it."""
    torch.manual_seed(0)
    weights, pixel, images = torch.randn(64, 96, 3, 3), torch.randn(1, 96, 1, 1), torch.randn(8, 64, 28, 28)

    def filtered(weights: Tensor, pixel: Tensor, images: Tensor) -> Tensor:
        return F.conv2d(images, follows(F.conv2d(weights, pixel)), padding=1, groups=64)

    names = planned_kernels(monkeypatch)
    torch._dynamo.reset()
    found = torch.compile(filtered, backend="ipu", fullgraph=True)(weights, pixel, images)
    wanted = filtered(weights.double(), pixel.double(), images.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)
    assert "depthwise_blocked" in names


@pytest.mark.whole
def test_images_of_few_channels_are_made_and_read_as_they_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, CHANNELS, 3, padding=1), nn.ReLU(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    ).eval()
    x = torch.randn(2, 3, 32, 32)
    names = planned_kernels(monkeypatch)
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(model, backend="ipu", options={"frozen_weights": True})(x)
        wanted = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
    moved = [name for name in names if not name.startswith(("fold", "pack"))]
    # The first convolution would leave half of each block empty; the second one reads its results where they lie.
    assert moved[-3:] == ["conv_blocked", "winograd", "from_blocked"]
    assert not {"to_blocked", "conv_blocked"}.intersection(moved[:-3])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_what_comes_before_a_convolution_of_few_channels_stays_as_it_lies(
    channels: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first((x / 255 - 0.5) * 2).relu()).relu()

    model, x = Scaled().eval(), torch.randint(0, 256, (4, channels, 84, 84)).float()
    names = planned_kernels(monkeypatch)
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(model, backend="ipu", options={"frozen_weights": True})(x)
        wanted = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
    moved = [name for name in names if not name.startswith(("fold", "pack"))]
    assert moved == ["chain", "conv_blocked", "conv_blocked", "from_blocked"]
