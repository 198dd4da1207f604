"""Vertices of reductions, of a few rows and of many, in one, two and three levels."""

from __future__ import annotations

import pytest
import torch

from tests.device.tilings.judged import judge

SHAPES = [(3, 5, 7), (2, 3001), (1600, 6), (1, 1), (3, 64, 50)]


class Reductions(torch.nn.Module):
    """Reductions of one tensor over one dimension, over several, and over all."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sums = x.sum(0), x.sum((0, -1), keepdim=True), x.sum(), x.mean(-1), x.mean()
        extremes = x.amax(1), x.amin(0, keepdim=True), x.max(), x.min(), *x.max(-1), *x.min(0, keepdim=True)
        places = x.argmax(), x.argmin(1), x.argmax(0)
        logical = (x > 2).any(), (x > -2).all(1), (x > 2).any(0, keepdim=True)
        spreads = x.var(1), x.std(), *torch.var_mean(x, dim=0, correction=0), *torch.std_mean(x)
        norms = x.norm(dim=0), x.norm(), torch.linalg.vector_norm(x, 1), torch.linalg.vector_norm(x, torch.inf, 1)
        others = (x / 64 + 1).prod(1), (x / 64 + 1).prod(), torch.logsumexp(x, 0), torch.logsumexp(x, (0, 1))
        integers = (x * 4).int().sum(), (x > 0).sum(0), (x * 4).int().amax(1)
        return *sums, *extremes, *places, *logical, *spreads, *norms, *others, *integers


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_reductions_of_any_dimensions(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    machine = judge(Reductions(), torch.randn(shape).to(dtype))
    assert not machine.without_kernel
    assert not machine.whole
    assert {"aten.sum.dim_IntList", "aten.mean.default", "aten.max.dim", "aten.argmax.default",
            "aten.var_mean.correction", "aten.linalg_vector_norm.default", "aten.any.default"} <= set(machine.tiled)


class OfPermuted(torch.nn.Module):
    """Reductions of views, and of nothing in a row of one."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.permute(2, 0, 1)[1:]
        return y.sum(1), y.amax((0, 2)), torch.tensor(3.0).expand(1).sum() + x.sum(()), y.argmax(-1)


def test_reductions_of_views() -> None:
    machine = judge(OfPermuted(), torch.randn(4, 6, 9))
    assert {"aten.sum.dim_IntList", "aten.amax.default", "aten.argmax.default"} <= set(machine.tiled)
    assert not {"aten.sum.dim_IntList", "aten.amax.default", "aten.argmax.default"} & set(machine.whole)


def test_a_reduction_in_three_levels() -> None:
    machine = judge(Reductions(), torch.randn(2, 60000))
    assert not machine.whole
    assert not machine.without_kernel
