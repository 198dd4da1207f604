"""Vertices of products on the matrix unit, against the products themselves."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import torchipu
from tests.device.tilings.judged import Judged, judge

SGD = partial(torch.optim.SGD, lr=0.1)


def _assert_tiled(machine: Judged, *targets: str) -> None:
    assert set(targets) <= set(machine.tiled)
    assert not set(targets) & (set(machine.whole) | set(machine.without_kernel)), machine.without_kernel


class Chain(torch.nn.Module):
    """Plain and batched products, with an addend of every shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(37, 19)
        self.second = torch.nn.Parameter(torch.randn(3, 19, 5) / 4)
        self.added = torch.nn.Parameter(torch.randn(3, 1, 5))
        self.last = torch.nn.Parameter(torch.randn(5, 1) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x.reshape(-1, 37)).reshape(3, -1, 19).tanh()
        y = torch.baddbmm(self.added, y, self.second, beta=0.5, alpha=-2.0)
        z = torch.addmm(y[0, :, :1], y[1], self.last, alpha=0.3)
        return (z + torch.bmm(y, y.transpose(1, 2)).sum(0) @ z).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_matrices(dtype: torch.dtype) -> None:
    machine = judge(Chain().to(dtype), torch.randn(3, 11, 37, dtype=dtype), optimizer=SGD)
    _assert_tiled(machine, "aten.addmm.default", "aten.mm.default", "aten.bmm.default", "aten.baddbmm.default")
