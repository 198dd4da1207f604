"""Scans as users call them, against eager float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.judge import check

SCANS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "cumsum": lambda x, dim: x.cumsum(dim),
    "cumprod": lambda x, dim: x.cumprod(dim),
    "cummax": lambda x, dim: x.cummax(dim),
    "cummin": lambda x, dim: x.cummin(dim),
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
}
ELSEWHERE = ("aten.scatter_add.default",)  # the gradient of cummax, a look-up


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", SCANS)
def test_values_and_gradients_along_each_dimension(name: str, dim: int) -> None:
    torch.manual_seed(dim)
    x = torch.randn(3, 19, 37).transpose(0, 1) if dim else torch.randn(19, 3, 37)
    check(lambda x: SCANS[name](x, dim), x.requires_grad_(), tolerance=1e-4, allowed=ELSEWHERE)


@pytest.mark.parametrize("length", [1, 47, 48, 49, 96, 97, 1024])
@pytest.mark.parametrize("rows", [1, 7, 8, 19])
def test_rows_of_any_length_and_number(length: int, rows: int) -> None:
    torch.manual_seed(length)
    x = torch.randn(rows, length)
    x[rows // 2, length // 2] = torch.nan
    x[-1, length // 3] = torch.inf
    check(lambda x: (x.cumsum(1), (x * 0.1 + 1).cumprod(1)), x, tolerance=1e-4)
    check(lambda x: x.cumsum(1), torch.randn(rows, length).requires_grad_(), tolerance=1e-4)


@pytest.mark.parametrize("name", SCANS)
def test_halves_accumulate_in_float(name: str) -> None:
    torch.manual_seed(0)
    check(lambda x: SCANS[name](x, 1), torch.randn(6, 50).half(), tolerance=1e-2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_integers_wrap_and_keep_the_types_of_eager(name: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 9, (5, 33)).to(dtype)
    check(lambda x: SCANS[name](x, 1), x)
    if name == "cumsum" and dtype is not torch.bool:
        check(lambda x: x.cumsum(0, dtype=torch.int8), x * 13)
        check(lambda x: x.cumsum(0, dtype=torch.float32), x)


@pytest.mark.parametrize("name", SCANS)
def test_nan_and_infinity_pass_as_in_eager(name: str) -> None:
    x = torch.randn(7, 30)
    x[0, 3], x[1, 4], x[2, 5], x[3, 0] = math.nan, math.inf, -math.inf, math.nan
    x[4, 2], x[4, 7], x[5] = math.inf, -math.inf, -math.inf
    x[6, 9], x[6, 12] = math.nan, math.nan
    check(lambda x: SCANS[name](x, 1), x)


@pytest.mark.parametrize("name", SCANS)
def test_nothing_and_a_single_number(name: str) -> None:
    check(lambda x: SCANS[name](x, 0), torch.tensor(1.5, requires_grad=True), allowed=ELSEWHERE)
    check(lambda x: SCANS[name](x, 1), torch.randn(4, 0))
    check(lambda x: SCANS[name](x, 0), torch.randn(0, 4))


def test_a_long_sum_keeps_its_digits() -> None:
    check(lambda x: x.cumsum(0), torch.rand(100_003) + 1, tolerance=1e-6)


def test_the_last_of_equal_running_extremes_is_named() -> None:
    x = torch.randint(0, 4, (20, 40)).float()
    check(lambda x: x.cummax(0), x)
    check(lambda x: x.cummin(1), x)


def test_gradient_of_a_cumulative_product_with_zeros() -> None:
    x = torch.randn(3, 8)
    x[0, 3] = x[1, 2] = x[1, 5] = 0
    check(lambda x: x.cumprod(1), x.requires_grad_())
