"""Vertices of norms, forward and backward, of few rows and of many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from tests.device.tilings.judged import judge

SGD = partial(torch.optim.SGD, lr=0.1)
NORMS: list[tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = [
    (lambda: torch.nn.LayerNorm(33), (2, 7, 33)),
    (lambda: torch.nn.LayerNorm((5, 9), bias=False), (3, 5, 9)),
    (lambda: torch.nn.LayerNorm(12, elementwise_affine=False), (1700, 12)),
    (lambda: torch.nn.LayerNorm(3000), (2, 3000)),
    (lambda: torch.nn.LayerNorm(16), (3000, 16)),
    (lambda: torch.nn.LayerNorm(3), (1, 3)),
    (lambda: torch.nn.LayerNorm(4), (300, 4)),
    (lambda: torch.nn.GroupNorm(2, 6), (3, 6, 5, 7)),
    (lambda: torch.nn.GroupNorm(1, 4), (2, 4, 900)),
    (lambda: torch.nn.GroupNorm(4, 8, affine=False), (5, 8)),
    (lambda: torch.nn.BatchNorm2d(5), (4, 5, 9, 7)),
    (lambda: torch.nn.BatchNorm1d(1600), (3, 1600)),
    (lambda: torch.nn.BatchNorm1d(2, affine=False), (70, 2, 40)),
    (lambda: torch.nn.BatchNorm2d(3, track_running_stats=False), (2, 3, 4, 4)),
    (lambda: torch.nn.BatchNorm1d(1), (4, 1)),
]


class Normed(torch.nn.Module):
    """A norm of what has a gradient, or has not."""

    def __init__(self, norm: torch.nn.Module, shape: tuple[int, ...], *, is_leaf: bool) -> None:
        super().__init__()
        self.norm = norm
        self.weight = torch.nn.Parameter(torch.randn(shape) + 1, requires_grad=not is_leaf)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.norm(x * self.weight) * x).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("number", range(len(NORMS)))
def test_norms_and_gradients(dtype: torch.dtype, number: int) -> None:
    torch.manual_seed(0)
    make, shape = NORMS[number]
    machine = judge(Normed(make(), shape, is_leaf=False).to(dtype), torch.randn(shape).to(dtype), optimizer=SGD)
    assert sum("_norm" in target for target in machine.tiled) == 2
    assert not machine.whole
    assert not machine.without_kernel


@pytest.mark.parametrize("number", [0, 1, 7, 10])
def test_gradients_of_weights_alone(number: int) -> None:
    make, shape = NORMS[number]
    machine = judge(Normed(make(), shape, is_leaf=True), torch.randn(shape), optimizer=SGD)
    assert sum("_norm" in target for target in machine.tiled) == 2
    assert not machine.whole


@pytest.mark.parametrize("number", [10, 11, 12, 13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_norms_by_running_statistics(dtype: torch.dtype, number: int) -> None:
    make, shape = NORMS[number]
    norm = make()
    norm(torch.randn(shape) * 2 + 1)
    machine = judge(norm.to(dtype), torch.randn(shape).to(dtype))
    assert not machine.whole
    assert not machine.without_kernel


class Frozen(torch.nn.Module):
    """A batch norm by running statistics that passes gradients on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 6, 5))
        self.norm = torch.nn.BatchNorm1d(6)
        self.norm(torch.randn(9, 6, 5) * 2 + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        y = torch.nn.functional.batch_norm(x * self.weight, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        return (y * x).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_by_running_statistics(dtype: torch.dtype) -> None:
    machine = judge(Frozen().to(dtype), torch.randn(4, 6, 5, dtype=dtype), optimizer=SGD)
    assert "aten.native_batch_norm_backward.default" in machine.tiled
    assert not machine.whole
    assert not machine.without_kernel


class Rms(torch.nn.Module):
    """A norm by the root of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, 24))
        self.norm = torch.nn.RMSNorm(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.norm(x * self.weight) * x).sum()


def test_root_mean_square() -> None:
    machine = judge(Rms(), torch.randn(5, 24), optimizer=SGD)
    assert not machine.whole
    assert not machine.without_kernel
