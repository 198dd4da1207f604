"""Compiled programs that train nothing compute in blocks where all together pays, whether weights are frozen or not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.host.planned import planned_kernels


def _kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    torch._dynamo.reset()
    return planned_kernels(monkeypatch)


def _settled(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for name, statistics in module.named_buffers():
        if statistics.is_floating_point():
            statistics.normal_() if name.endswith("mean") else statistics.uniform_(0.5, 2.0)
    return module.eval()


def _check(module: nn.Module, x: torch.Tensor, **options: object) -> None:
    with torch.no_grad():
        found = torch.compile(module, backend="ipu", fullgraph=True, options=options)(x)
        wanted = copy.deepcopy(module).double()(x.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=2e-4)


def test_a_convolution_ends_with_its_norm_and_activation_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _kernels(monkeypatch)
    module = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    _check(_settled(module), torch.randn(8, 32, 28, 28))
    assert not {"conv_product", "batch_apply", "chain"} & set(names)


@pytest.mark.parametrize("sizes", [(8, 32, 25, 5), (4, 40, 28, 28), (2, 64, 7, 7), (1, 33, 1, 300)])
@pytest.mark.parametrize(("window", "stride"), [(3, 1), (3, 2), (5, 2), (7, 1)])
def test_depthwise_convolutions_are_in_blocks(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], window: int, stride: int,
) -> None:
    names, channels = _kernels(monkeypatch), sizes[1]
    convolution = nn.Conv2d(channels, channels, window, stride, window // 2, groups=channels)
    _check(_settled(nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU6())), torch.randn(sizes))
    assert "depthwise_blocked" in names
    assert "depthwise" not in names


def test_patches_of_images_are_in_blocks_though_channels_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain form reads windows that lie apart pixel by pixel; of windows beside each other it reads rows."""
    names = _kernels(monkeypatch)
    _check(_settled(nn.Conv2d(3, 16, 16, 16)), torch.randn(1, 3, 224, 224), frozen_weights=True)
    assert "conv_blocked" in names
    assert "conv_product" not in names


def test_weights_of_groups_are_packed_at_each_call_where_windows_have_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products alone would not pay for it: what does is that the plain form reads a pixel for few sums."""
    names = _kernels(monkeypatch)
    _check(_settled(nn.Sequential(nn.Conv2d(256, 256, 3, 2, 1, groups=4), nn.ReLU())), torch.randn(1, 256, 20, 20))
    assert "conv_blocked" in names
    assert "conv_product" not in names


def test_what_trains_is_computed_as_on_any_number_of_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _kernels(monkeypatch)
    module = _settled(nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()))
    x = torch.randn(2, 8, 6, 6)
    torch.compile(module, backend="ipu")(x).sum().backward()
    assert not any("blocked" in name for name in names)
