"""Vertices of softmax and log-softmax, forward and backward."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.device.tilings.judged import judge


class Softmax(torch.nn.Module):
    """Both kinds along a dimension, in a loss."""

    def __init__(self, dim: int, *shape: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = torch.nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        return (y.softmax(self.dim) * x).sum() + (y.log_softmax(self.dim) * x).mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("dim", "shape"), [(-1, (7, 33)), (1, (3, 5, 8)), (0, (1, 1)), (1, (2, 3000)), (0, (5, 1700))])
def test_softmax_and_gradients(dtype: torch.dtype, dim: int, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    machine = judge(Softmax(dim, *shape).to(dtype), torch.randn(shape).to(dtype),
                    optimizer=partial(torch.optim.SGD, lr=0.1))
    wanted = {"aten._softmax.default", "aten._log_softmax.default", "aten._softmax_backward_data.default",
              "aten._log_softmax_backward_data.default"}
    assert wanted <= set(machine.tiled)
    assert not machine.without_kernel


class Safe(torch.nn.Module):
    """Softmax that makes zeros of rows of minus infinity."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._safe_softmax(x, -1)


def test_safe_softmax() -> None:
    x = torch.randn(3, 5)
    x[1] = -torch.inf
    x[2, 3] = -torch.inf
    machine = judge(Safe(), x)
    assert set(machine.tiled) == {"aten._safe_softmax.default"}
    assert not machine.without_kernel
