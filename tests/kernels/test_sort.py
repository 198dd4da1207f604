"""Kernels that sort, select, search and scan, on guarded buffers and several threads, against eager."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import run_op

SHAPES = [((70, 9), 1), ((9, 70), 0), ((3, 300, 17), 1), ((1, 5000), 1), ((2, 16, 33), -1)]


def same_bits(target: str, *args: object, values_only: bool = False, **kwargs: object) -> None:
    """Compare with eager on 1, 2 and 4 threads; copied elements must be equal to the bit."""
    for threads in (1, 2, 4):
        ours, eager = run_op(target, *args, threads=threads, **kwargs)
        for mine, theirs in list(zip(ours, eager, strict=True))[: 1 if values_only else None]:
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_sorts_and_selections_write_their_rows_alone(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(shape[0])
    x = torch.randperm(torch.Size(shape).numel()).reshape(shape).to(dtype)
    length = shape[dim]
    same_bits("aten.sort.default", x, dim, True)
    same_bits("aten.sort.stable", x % 5, stable=True, dim=dim)
    for k in (0, 1, length // 2, length):
        same_bits("aten.topk.default", x, k, dim)
        if k:
            same_bits("aten.kthvalue.default", x, k, dim)
    same_bits("aten.median.dim", x, dim)
    same_bits("aten.nanmedian.dim", x, dim, True)
    same_bits("aten.mode.default", x % 5, dim, values_only=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("largest", [False, True])
def test_the_few_best_of_long_rows_come_in_order_and_the_first_of_equals_first(
    largest: bool, dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 200, (5, 777)).to(dtype)
    for kept in (1, 7, 64):
        same_bits("aten.topk.default", x, kept, 1, largest, values_only=True)
        for threads in (1, 2):
            (_, places), _ = run_op("aten.topk.default", x, kept, 1, largest, threads=threads)
            assert torch.equal(places, x.sort(stable=True, dim=1, descending=largest).indices[:, :kept])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("inner", [1, 2, 3, 4, 5, 9])
def test_the_few_best_of_rows_beside_each_other(inner: int, dtype: torch.dtype) -> None:
    torch.manual_seed(inner)
    x = torch.randint(0, 40, (3, 130, inner)).to(dtype)
    for kept in (1, 16):
        same_bits("aten.topk.default", x, kept, 1, values_only=True)
        for threads in (1, 2):
            (_, places), _ = run_op("aten.topk.default", x, kept, 1, threads=threads)
            assert torch.equal(places, x.sort(stable=True, dim=1, descending=True).indices[:, :kept])


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_scans_write_their_rows_alone(shape: tuple[int, ...], dim: int) -> None:
    torch.manual_seed(shape[0])
    whole = torch.randint(-3, 4, shape)
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        same_bits(f"aten.{name}.default", whole, dim)
    for name in ("cummax", "cummin"):
        same_bits(f"aten.{name}.default", torch.randn(shape), dim)


@pytest.mark.parametrize("count", [1, 31, 5000])
def test_searches_and_histograms_write_their_results_alone(count: int) -> None:
    torch.manual_seed(count)
    rows, values = torch.randn(4, 31).sort(1)[0], torch.randn(4, count)
    same_bits("aten.searchsorted.Tensor", rows, values, right=True)
    same_bits("aten.searchsorted.Tensor", rows[0].contiguous(), values, out_int32=True)
    same_bits("aten.bucketize.Tensor", values, rows[0].contiguous())
    same_bits("aten.histc.default", values, 7, -1, 1)
    same_bits("aten.histc.default", values, 7)


def test_negative_zero_and_the_payload_of_nan_are_copied() -> None:
    x = torch.tensor([[0.0, -0.0, 1.0, -0.0], [float("nan"), 2.0, -1.0, float("inf")]])
    x.view(torch.int32)[1, 0] = 0x7FC01234
    (values, positions), _ = run_op("aten.sort.stable", x, stable=True, dim=1)
    assert torch.equal(values.view(torch.int32), x.gather(1, positions).view(torch.int32))
    assert positions.tolist() == [[0, 1, 3, 2], [2, 1, 3, 0]]
