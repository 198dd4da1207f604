"""Vertices of elementwise ops and of optimisers, against the ops themselves."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import torchipu
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


def test_numbers_that_no_word_holds_are_chosen_from_nowhere() -> None:
    class Buckets(torch.nn.Module):
        """The distances of T5: those of logarithms are whole numbers only from one on."""

        def forward(self, distance: torch.Tensor) -> torch.Tensor:
            large = 4 + (torch.log(distance.float() / 4) * 3).to(torch.long)
            return torch.where(distance < 4, distance, large.clamp(max=7))

    machine = judge(Buckets(), torch.arange(40))
    assert "aten._to_copy.default" in machine.tiled
    assert torchipu.check(Buckets(), torch.arange(40)).is_equal
