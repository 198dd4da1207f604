"""Sorting, selection, search and histograms, against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.judge import check, run
from tests.releases import NUMBERS_IN_BUCKETS, SEVERAL_QUANTILES
from torchipu.errors import ExecutionError

TYPES = [torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
# Results and gradients of selections are looked up by position.
ELSEWHERE = ("aten.scatter.src", "aten.scatter_add.default", "aten.index_put.default")
DISTINCT: dict[str, Callable[[torch.Tensor], Any]] = {
    "sort": lambda x: x.sort(1),
    "sort down": lambda x: x.sort(0, descending=True),
    "argsort": lambda x: x.argsort(-1),
    "stable sort": lambda x: x.sort(dim=1, stable=True),
    "msort": lambda x: x.msort(),
    "topk": lambda x: x.topk(3, 1),
    "smallest": lambda x: x.topk(2, 0, False),
    "topk unsorted": lambda x: x.topk(4, 2, sorted=False)[0].sum(2),
    "kthvalue": lambda x: x.kthvalue(2, 1),
    "kthvalue kept": lambda x: x.kthvalue(5, 2, True),
    "median": lambda x: x.median(),
    "median of one": lambda x: x.median(1),
    "nanmedian": lambda x: x.nanmedian(),
    "nanmedian of one": lambda x: x.nanmedian(2, True),
    "mode": lambda x: x.mode(1),
    "quantile": lambda x: x.quantile(0.3, 1),
}


def distinct(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.randperm(count) - count // 2).reshape(shape).to(dtype)


@pytest.mark.parametrize("name", DISTINCT)
def test_values_and_gradients_of_distinct_floats(name: str) -> None:
    torch.manual_seed(3)
    x = distinct(6, 7, 5) * 0.25
    check(DISTINCT[name], x.requires_grad_(), allowed=ELSEWHERE)
    check(DISTINCT[name], distinct(5, 6, 7).permute(1, 2, 0))


@SEVERAL_QUANTILES
def test_several_quantiles_at_once() -> None:
    x = distinct(6, 7) * 0.25
    check(lambda x, q: x.quantile(q, 0), x.requires_grad_(), torch.tensor([0.1, 0.9]), allowed=ELSEWHERE)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 100, 256, 257, 3000])
def test_every_length_is_sorted_and_selected_from(length: int) -> None:
    torch.manual_seed(length)
    x = torch.randn(3, length)
    check(lambda x: x.sort(1), x)
    for k in {1, max(1, length // 3), length}:
        check(lambda x, k=k: x.topk(k, 1), x)
        check(lambda x, k=k: x.kthvalue(k, 1), x)
    check(lambda x: x.median(1), x)


@pytest.mark.parametrize("dtype", [*TYPES, torch.bool], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_keep_their_order(dtype: torch.dtype, descending: bool) -> None:
    x = torch.randint(0, 5, (4, 600)).to(dtype)
    check(lambda x: x.sort(dim=1, descending=descending, stable=True), x)
    check(lambda x: x.sort(dim=0, descending=descending, stable=True), x)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_selection_of_every_type(dtype: torch.dtype) -> None:
    x = distinct(3, 40, dtype=torch.int64)
    x = (x.abs() if dtype is torch.uint8 else x).to(dtype)
    ties = (1,) if dtype is torch.uint8 else ()
    for function in (lambda x: x.topk(5, 1), lambda x: x.kthvalue(7, 1), lambda x: x.median(1)):
        check(function, x, skip=ties)
    check(lambda x: x.median(), x)
    check(lambda x: x.topk(3, 1, False)[0], x)


def test_large_integers_are_told_apart() -> None:
    x = torch.randint(-(2**62), 2**62, (2, 500))
    x[0, :4] = torch.tensor([2**63 - 1, -(2**63), 2**53, 2**53 + 1])
    check(lambda x: x.sort(1), x)
    check(lambda x: x.topk(9, 1), x)
    check(lambda x: x.kthvalue(250, 1), x)


@pytest.mark.parametrize("length", [30, 700])
def test_nan_and_infinity_are_placed_as_in_eager(length: int) -> None:
    x = torch.randn(5, length)
    x[0, 3], x[0, 9], x[1, 4], x[2, 5], x[2, 6] = math.nan, math.nan, math.inf, -math.inf, math.nan
    x[3, 2:4], x[4] = torch.tensor([0.0, -0.0]), math.nan
    check(lambda x: x.sort(dim=1, stable=True), x)
    check(lambda x: x.sort(dim=1, descending=True, stable=True), x)
    check(lambda x: x.topk(4, 1)[0], x)
    check(lambda x: x.topk(4, 1, False)[0], x)
    check(lambda x: x.kthvalue(length, 1)[0], x)
    check(lambda x: x.median(1)[0], x)
    check(lambda x: x.nanmedian(1)[0], x)
    check(lambda x: x.median(), x)
    check(lambda x: x.nanmedian(), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8, torch.bool], ids=str)
def test_the_most_frequent_value(dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (6, 15)).to(dtype)  # eager names the last position only in short rows
    check(lambda x: x.mode(1), x)
    check(lambda x: x.mode(0, True), x)


def test_sorting_nothing_and_a_single_number() -> None:
    check(lambda x: x.sort(0), torch.tensor(2.0))
    check(lambda x: x.topk(1), torch.tensor(2.0))
    check(lambda x: x.median(0), torch.tensor(2.0))
    check(lambda x: x.kthvalue(1), torch.tensor(2))
    check(lambda x: x.sort(1), torch.randn(3, 0))
    check(lambda x: x.sort(0), torch.randn(3, 0))
    check(lambda x: x.topk(0, 1), torch.randn(3, 4))
    check(lambda x: x.median(), torch.randn(0), allowed=("aten.median.default",))  # NaN, by ATen


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32, torch.uint8], ids=str)
def test_search_in_sorted_rows(dtype: torch.dtype, right: bool) -> None:
    rows = torch.randint(0, 50, (4, 33)).to(dtype)
    values = torch.randint(0, 60, (4, 9)).to(dtype)
    ordered, order = rows.sort(1)
    check(lambda s, v: torch.searchsorted(s, v, right=right), ordered, values)
    check(lambda s, v, o: torch.searchsorted(s, v, side="right" if right else "left", sorter=o), rows, values, order)
    check(lambda s, v: torch.searchsorted(s, v, right=right, out_int32=True), ordered[0].contiguous(), values)
    check(lambda b, v: torch.bucketize(v, b, right=right), ordered[0].contiguous(), values)
    check(lambda b: torch.searchsorted(b, 20.5, right=right), ordered[0].contiguous())


@NUMBERS_IN_BUCKETS
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32, torch.uint8], ids=str)
def test_bucket_of_a_number(dtype: torch.dtype, right: bool) -> None:
    ordered = torch.randint(0, 50, (33,)).sort()[0].to(dtype)
    check(lambda b: torch.bucketize(20, b, right=right), ordered)


def test_search_for_nan_and_in_nothing() -> None:
    values = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    check(torch.searchsorted, torch.tensor([-1.0, 0.0, 1.0, math.inf]), values)
    check(lambda s, v: torch.searchsorted(s, v, right=True), torch.tensor([0.0, math.nan]), values)
    check(torch.searchsorted, torch.randn(0), values)


@pytest.mark.parametrize("size", [1, 1000, 70_001])
def test_histograms_count_as_eager_does(size: int) -> None:
    torch.manual_seed(size)
    x = torch.randn(size)
    for low, high in ((-1, 2), (0, 0), (-0.3, 0.3)):
        # Judged by eager float32: the borders of bins are rounded, and float64 puts elements elsewhere.
        one, three = (
            run(lambda x, low=low, high=high: x.histc(13, low, high), x, threads=threads)[0] for threads in (1, 3)
        )
        assert torch.equal(one, x.histc(13, low, high))
        assert torch.equal(one, three)
    check(lambda x: x.histc(4, 0, 4), torch.tensor([0.0, 1.5, 4.0, math.nan, 5.0, math.inf]))
    check(lambda x: x.histc(5), torch.full((7,), 2.0))


def test_a_histogram_between_infinite_extremes_is_refused() -> None:
    with pytest.raises(ExecutionError, match="histc"):
        run(lambda x: x.histc(4), torch.tensor([1.0, math.inf]))
