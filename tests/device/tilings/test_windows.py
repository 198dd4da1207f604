"""Vertices of pools, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.device.tilings.judged import judge

Pool = Callable[[torch.Tensor], torch.Tensor]
POOLS: list[tuple[Pool, tuple[int, ...]]] = [
    (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 9, 8)),
    (lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 1), dilation=(2, 1), ceil_mode=True), (2, 11, 7)),
    (lambda x: F.max_pool2d(x, 2), (1, 4, 6, 6)),
    (lambda x: F.max_pool1d(x, 3, 1, 1), (2, 3, 9)),
    (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 9, 8)),
    (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (3, 8, 9)),
    (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (1, 4, 6, 5)),
    (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (2, 3, 7, 10)),
    (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 7, 7)),
    (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (2, 3, 7, 5)),
    (lambda x: F.max_pool3d(x, 2, 1, 1), (2, 3, 3, 4, 5)),
    (lambda x: F.avg_pool3d(x, (2, 3, 2), 2, (1, 1, 0), count_include_pad=False), (2, 4, 6, 5)),
    (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), (2, 2, 3, 4, 5)),
    (lambda x: F.adaptive_max_pool3d(x, 2), (2, 2, 3, 4, 5)),
]


class Pooled(torch.nn.Module):
    """A pool of what has a gradient."""

    def __init__(self, pool: Pool, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.pool = pool
        self.weight = torch.nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(x * self.weight)
        return (y * y).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("number", range(len(POOLS)))
def test_pools_and_gradients(dtype: torch.dtype, number: int) -> None:
    torch.manual_seed(0)
    pool, shape = POOLS[number]
    machine = judge(Pooled(pool, shape).to(dtype), torch.randn(shape).to(dtype),
                    optimizer=partial(torch.optim.SGD, lr=0.1))
    assert not {target for target in machine.whole if "pool" in target}
    assert not {target for target in machine.without_kernel if "pool" in target}
    assert [target for target in machine.tiled if "backward" in target] or number == 8
