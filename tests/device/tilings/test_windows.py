"""Vertices of pools, forward and backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import torchipu
from tests.device.tilings.judged import judge
from tests.device.tilings.simulated import groups_of

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


FORWARDS = (
    "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d",
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("number", range(len(POOLS)))
def test_windows_that_do_not_fit_are_cut_into_pieces(
    dtype: torch.dtype, number: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchipu.ops.pool.AVAILABLE_MEMORY", 0.0)
    torch.manual_seed(0)
    pool, shape = POOLS[number]
    machine = judge(Pooled(pool, shape).to(dtype).eval(), torch.randn(shape).to(dtype))
    sets = Counter(group.op.target for group in groups_of(machine.executable))
    targets = {f"aten.{name}.default" for name in FORWARDS} & set(sets)
    assert targets or number == 8
    assert all(sets[target] == 2 for target in targets)
    assert targets <= set(machine.tiled) - set(machine.without_kernel)


@pytest.mark.parametrize("pool", [
    lambda x: F.adaptive_avg_pool1d(x, 7), lambda x: F.adaptive_max_pool1d(x, 7), lambda x: F.max_pool1d(x, 1 << 19),
    lambda x: F.avg_pool1d(x, 300_000, 100_000), lambda x: F.adaptive_avg_pool2d(x.view(1, 1024, 1024), 7),
    lambda x: F.max_pool2d(x.view(1, 1024, 1024), 1000, 24),
    lambda x: F.adaptive_max_pool3d(x.view(1, 64, 128, 128), 2),
])
def test_windows_of_more_elements_than_a_tile_holds(pool: Pool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(1, 1 << 20, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    y, wanted = torch.compile(pool, backend="ipu")(x), pool(wide)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
    y.square().sum().backward()
    wanted.square().sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("available", [None, 0.0])
@pytest.mark.parametrize(("pool", "shape"), [
    (partial(F.max_pool1d, kernel_size=3, stride=2, padding=1), (2, 3, 9)),
    (partial(F.max_pool2d, kernel_size=3, stride=2, padding=1), (2, 3, 9, 8)),
    (partial(F.max_pool2d, kernel_size=(3, 2), dilation=(2, 1), ceil_mode=True), (2, 3, 11, 7)),
    (partial(F.max_pool3d, kernel_size=2, stride=1, padding=1), (1, 2, 3, 4, 5)),
    (partial(F.adaptive_max_pool2d, output_size=(3, 2)), (2, 3, 7, 5)),
    (partial(F.adaptive_max_pool3d, output_size=2), (1, 2, 3, 4, 5)),
])
def test_of_several_nan_in_a_window_the_place_is_that_of_the_last(
    pool: Callable[..., tuple[torch.Tensor, torch.Tensor]], shape: tuple[int, ...], available: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if available is not None:
        monkeypatch.setattr("torchipu.ops.pool.AVAILABLE_MEMORY", available)
    specials = torch.tensor([torch.nan, torch.nan, -torch.inf, torch.inf, 1.0, 1.0, -2.0])
    x = specials[torch.randint(0, len(specials), shape, generator=torch.Generator().manual_seed(0))]
    x[0, 0] = -torch.inf  # windows of nothing larger have the first place
    values, places = torchipu.InferenceStep(Placed(pool), torchipu.Options(executor="tiles"))(x)
    wanted, at = pool(x.double(), return_indices=True)
    assert torch.equal(places, at)
    torch.testing.assert_close(values.double(), wanted, rtol=0, atol=0, equal_nan=True)


class Placed(torch.nn.Module):
    """A pool, and where it found what is largest."""

    def __init__(self, pool: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pool(x, return_indices=True)
