"""Pooling of one to three dimensions against eager float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops.judge import judge

SIZES = {1: (2, 3, 14), 2: (2, 3, 9, 11), 3: (2, 3, 7, 8, 6)}
WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 3, "stride": 1},
    {"kernel_size": 4, "stride": 3, "ceil_mode": True},
]


def name_of(keywords: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in keywords.items()).replace(" ", "")


def data(dimensions: int, *, batched: bool = True) -> torch.Tensor:
    """Return an input whose largest values tie nowhere, also in half."""
    shape = SIZES[dimensions] if batched else SIZES[dimensions][1:]
    count = torch.Size(shape).numel()
    values = torch.randperm(count, generator=torch.Generator().manual_seed(0)).float() / 256 - 1
    return values.reshape(shape).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("keywords", [*WINDOWS, {"kernel_size": 2, "dilation": 3, "stride": 1}], ids=name_of)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_max_pool_gives_values_indices_and_gradient(dimensions: int, keywords: dict[str, Any], dtype: Any) -> None:
    function = getattr(F, f"max_pool{dimensions}d")
    judge(lambda x: function(x, **keywords), data(dimensions), dtype=dtype)
    judge(lambda x: function(x, **keywords, return_indices=True), data(dimensions, batched=False), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("keywords", [*WINDOWS, {"kernel_size": 3, "padding": 1, "count_include_pad": False}],
                         ids=name_of)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_average_pool_and_its_gradient_equal_eager(dimensions: int, keywords: dict[str, Any], dtype: Any) -> None:
    function = getattr(F, f"avg_pool{dimensions}d")
    judge(lambda x: function(x, **keywords), data(dimensions), dtype=dtype)
    judge(lambda x: function(x, **keywords), data(dimensions, batched=False), dtype=dtype)
    if dimensions > 1:
        judge(lambda x: function(x, **keywords, divisor_override=5), data(dimensions), dtype=dtype)


@pytest.mark.parametrize("kind", ["avg", "max"])
@pytest.mark.parametrize("size", [1, 2, 5, 12])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_adaptive_pool_and_its_gradient_equal_eager(dimensions: int, size: int, kind: str) -> None:
    function = getattr(F, f"adaptive_{kind}_pool{dimensions}d")
    judge(lambda x: function(x, size), data(dimensions))
    judge(lambda x: function(x, size), data(dimensions, batched=False), dtype=torch.float16)


def test_adaptive_max_pool_gives_indices() -> None:
    judge(lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True), data(2))
    judge(lambda x: F.adaptive_avg_pool2d(x, (None, 3)), data(2))
    judge(lambda x: F.adaptive_max_pool3d(x, (4, 3, None), return_indices=True), data(3))


@pytest.mark.parametrize("function", [
    lambda x: F.lp_pool1d(x.flatten(2), 2, 3), lambda x: F.lp_pool2d(x, 3, (2, 3), stride=2),
    lambda x: F.lp_pool2d(x, 1.5, 2, ceil_mode=True),
])
def test_lp_pool_and_its_gradient_equal_eager(function: Callable[..., Any]) -> None:
    judge(function, (data(2).detach().abs() + 0.1).requires_grad_())


def test_lp_pool3d_and_its_gradient_equal_eager() -> None:
    judge(lambda x: F.lp_pool3d(x, 2, (2, 3, 2)), (data(3).detach().abs() + 0.1).requires_grad_())


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_max_unpool_puts_values_back(dimensions: int, batched: bool) -> None:
    pool, unpool = getattr(F, f"max_pool{dimensions}d"), getattr(F, f"max_unpool{dimensions}d")

    def function(x: torch.Tensor) -> torch.Tensor:
        values, indices = pool(x, 2, return_indices=True)
        return unpool(values * 2, indices, 2, output_size=x.shape[-dimensions:])

    judge(function, data(dimensions, batched=batched))


def test_fractional_pool_draws_its_windows_from_given_samples() -> None:
    samples = torch.rand(2, 3, 2)
    judge(lambda x: F.fractional_max_pool2d(x, 2, output_size=(4, 5), _random_samples=samples.to(x.dtype)), data(2),
          native=False)


@pytest.mark.parametrize("function", [
    lambda x: F.max_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(x, 2),
])
def test_an_empty_batch_gives_an_empty_result(function: Callable[..., Any]) -> None:
    judge(function, torch.zeros(0, 3, 6, 6, requires_grad=True))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_max_pool_hands_on_nan_and_infinities(dimensions: int) -> None:
    x = data(dimensions).detach()
    x.view(-1)[3], x.view(-1)[20], x.view(-1)[30:50] = float("nan"), float("inf"), -float("inf")
    judge(lambda x: getattr(F, f"max_pool{dimensions}d")(x, 3, 2, 1, return_indices=True), x)
