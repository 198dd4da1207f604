"""Vertices of scans, which are given whole rows."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import torchipu
from tests.device.tilings.judged import judge


class Scans(torch.nn.Module):
    """Scans along one dimension, of a few rows or of many."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.permute(1, 0, 2)
        return (
            x.cumsum(-1), y.cumsum(1), (x / 8 + 1).cumprod(0), *x.cummax(1), *y.cummin(0), torch.logcumsumexp(x, 1),
            (x * 4).int().cumsum(0), x.sum().cumsum(0),
        )


@pytest.mark.parametrize("shape", [(3, 5, 7), (40, 1, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scans(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    machine = judge(Scans(), torch.randn(shape).to(dtype))
    assert {"aten.cumsum.default", "aten.cumprod.default", "aten.cummax.default"} <= set(machine.tiled)
    assert not {target for target in machine.whole if "cum" in target}
    assert not machine.without_kernel


class Weighted(torch.nn.Module):
    """A weight of 33 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(33))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * self.weight) ** 2).sum()


def test_gradients_that_are_clipped() -> None:
    options = torchipu.Options(max_grad_value=0.5, allow_out_of_memory=True)
    machine = judge(Weighted(), torch.randn(2, 33), optimizer=partial(torch.optim.SGD, lr=0.1), options=options)
    assert "ipu.clip_values.default" in machine.tiled
