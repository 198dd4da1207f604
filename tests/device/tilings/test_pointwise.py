"""Vertices of elementwise ops and of optimisers, against the ops themselves."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.device.tilings.judged import judge


class Pointwise(torch.nn.Module):
    """Elementwise ops with broadcast operands, of other types and of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.row = torch.nn.Parameter(torch.randn(33))
        self.column = torch.nn.Parameter(torch.randn(7, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(x * self.row + self.column)
        y = torch.where(y > 0.1, y, y.exp() - 1)
        return (y / 3 + (x > 0).to(x.dtype)).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_elements_by_themselves(dtype: torch.dtype) -> None:
    machine = judge(Pointwise().to(dtype), torch.randn(7, 33, dtype=dtype))
    assert not machine.without_kernel
    assert {"aten.mul.Tensor", "aten.add.Tensor", "aten.gelu.default", "aten.where.self"} <= set(machine.tiled)


@pytest.mark.parametrize("optimizer", [
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01), partial(torch.optim.AdamW, lr=0.01),
    partial(torch.optim.RMSprop, lr=0.01),
])
def test_updates(optimizer: object) -> None:
    machine = judge(Pointwise(), torch.randn(7, 33), optimizer=optimizer)
    assert any(target.startswith("ipu.") for target in machine.tiled)
    assert not any(target.startswith("ipu.") for target in machine.whole)
