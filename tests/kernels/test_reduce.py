"""Reductions against eager PyTorch and float64: every dimension, layout, type and number of threads."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.elem_planner import run_op

LAYOUTS = {
    "3d": lambda: torch.randn(7, 5, 3), "rows": lambda: torch.randn(64, 1000), "columns": lambda: torch.randn(3000, 10),
    "transposed": lambda: torch.randn(300, 70).t(), "image": lambda: torch.randn(8, 16, 9, 9),
    "one": lambda: torch.randn(5, 1),
    "expanded": lambda: torch.randn(4, 1).expand(4, 6), "long": lambda: torch.randn(200_003),
    "wide": lambda: torch.randn(40, 129),
    "strided": lambda: torch.randn(2, 3, 4, 5)[:, :, ::2].permute(3, 0, 2, 1),
    "half": lambda: torch.randn(50, 40).half(),
}
ONE_DIM = [
    "sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "any.dims", "all.dims", "var.correction",
    "std.correction", "var_mean.correction", "logsumexp.default",
]


def check(target: str, *args: object, rtol: float = 1e-5, atol: float = 4e-5, **kwargs: object) -> None:
    """Compare with eager, and the results for 1, 2 and 4 threads with one another."""
    ours, eager = run_op(f"aten.{target}", *args, **kwargs)
    for mine, theirs in zip(ours, eager, strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        half = theirs.dtype is torch.float16
        torch.testing.assert_close(
            mine, theirs, rtol=2e-3 if half else rtol, atol=2e-3 if half else atol, equal_nan=True
        )
    for threads in (2, 4):
        again, _ = run_op(f"aten.{target}", *args, threads=threads, **kwargs)
        for mine, other in zip(ours, again, strict=True):
            assert torch.equal(mine.nan_to_num(12345.0), other.nan_to_num(12345.0))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reduction_over_any_dimensions_equals_eager(layout: str) -> None:
    torch.manual_seed(0)
    x = LAYOUTS[layout]()
    dims = (
        [[d] for d in range(x.dim())]
        + ([[0, x.dim() - 1]] if x.dim() > 1 else [])
        + ([[0, 2, 3]] if x.dim() == 4 else [])
    )
    for dim in dims:
        for keepdim in (False, True):
            for target in ONE_DIM:
                if x.shape[dim[0]] == 1 and target.startswith(("var", "std")):
                    continue  # eager warns
                check(target, x, dim=dim, keepdim=keepdim)
            for order in (1, 2, math.inf):
                check("linalg_vector_norm.default", x, order, dim=dim, keepdim=keepdim)


@pytest.mark.parametrize("columns", [1, 3, 8, 10, 33, 64, 65])
@pytest.mark.parametrize("rows", [16, 97, 1024, 60_000])
def test_few_long_columns_are_as_exact_as_in_eager_pytorch(rows: int, columns: int) -> None:
    torch.manual_seed(rows)
    for x in (torch.randn(rows, columns), torch.randn(2, 3, rows, columns)):
        exact = x.double()
        (found,), _ = run_op("aten.sum.dim_IntList", x, dim=[-2])
        assert ((found.double() - exact.sum(-2)).abs() <= 12 * 2.0**-24 * exact.square().sum(-2).sqrt() * 8).all()
        (found,), _ = run_op("aten.linalg_vector_norm.default", x, 2, dim=[-2])
        torch.testing.assert_close(found.double(), exact.square().sum(-2).sqrt(), rtol=1e-6, atol=0)
        (found,), _ = run_op("aten.amax.default", x, dim=[-2])
        assert torch.equal(found, x.amax(-2))
    x[..., rows // 2, columns // 2] = torch.nan
    (found,), _ = run_op("aten.amin.default", x, dim=[-2])
    torch.testing.assert_close(found, x.amin(-2), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1, 0, 2)])
def test_all_of_a_tensor_in_another_order_equals_eager(order: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 17, 6, 5).permute(order).contiguous()
    x = x.permute([order.index(dim) for dim in range(4)])
    for dim in ([0, 1, 2, 3], [1, 2, 3], [0, 2, 3], [1, 3]):
        for target in ("sum.dim_IntList", "mean.dim", "amax.default", "any.dims"):
            check(target, x, dim=dim, keepdim=False)
        check("linalg_vector_norm.default", x, 2, dim=dim, keepdim=False)


@pytest.mark.parametrize("length", range(1, 10))
def test_rows_of_a_few_values_are_as_exact_as_long_ones(length: int) -> None:
    torch.manual_seed(length)
    x = torch.randn(1037, length)
    for values in (x, x.t().contiguous().t(), x[::2]):
        exact = values.double()
        for target, expected in (
            ("sum.dim_IntList", exact.sum(1)), ("mean.dim", exact.mean(1)), ("amax.default", exact.amax(1)),
            ("amin.default", exact.amin(1)),
        ):
            (found,), _ = run_op(f"aten.{target}", values, dim=[1])
            bound = 4 * 2.0**-24 * exact.abs().sum(1) + 1e-38
            assert ((found.double() - expected).abs() <= bound).all()
        for order in (1, 2, math.inf):
            check("linalg_vector_norm.default", values, order, dim=[1])
    x[3, length // 2] = math.nan
    for target in ("sum.dim_IntList", "amax.default", "amin.default"):
        check(target, x, dim=[1])


@pytest.mark.parametrize("shape", [(512, 1024), (3, 2), (70, 65), (8, 16, 9, 9), (2000, 17)])
def test_halves_are_added_down_columns_as_they_lie(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).half()
    for dim in ([0], [0, len(shape) - 1], list(range(len(shape) - 1))):
        for target in ("sum.dim_IntList", "mean.dim"):
            (found,), _ = run_op(f"aten.{target}", x, dim=dim)
            exact = (x.double().sum(dim) if target.startswith("sum") else x.double().mean(dim)).half()
            torch.testing.assert_close(found, exact, rtol=2.0**-10, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reduction_of_everything_equals_eager(layout: str) -> None:
    torch.manual_seed(1)
    x = LAYOUTS[layout]()
    for name in [
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "any",
        "all",
        "argmax",
        "argmin",
        "var",
        "std",
        "linalg_vector_norm",
        "norm.Scalar",
    ]:
        check(name if "." in name else f"{name}.default", x)
    # eager multiplies halves in half: no judge for products
    factors = 1 + x.float() * 0.01 / math.sqrt(x.numel())
    (product,), _ = run_op("aten.prod.default", factors)
    # Each factor may round once; eager's own product in float32 changes with the number of its threads.
    assert product.double().item() == pytest.approx(factors.double().prod().item(), rel=x.numel() * 2.0**-24 + 1e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_extremes_scans_and_products_along_one_dimension_equal_eager(layout: str) -> None:
    torch.manual_seed(2)
    x = LAYOUTS[layout]()
    for dim in range(x.dim()):
        for target in ["max.dim", "min.dim", "argmax.default", "argmin.default", "any.dim", "all.dim"]:
            check(target, x, dim)
        check("prod.dim_int", x.float() * 0.1 + 1, dim, rtol=2e-4)
        check("cumsum.default", x, dim, atol=1e-4)


@pytest.mark.parametrize("shape", [(1_000_003,), (100_000, 3), (3, 100_000), (4096, 64)])
def test_float_sum_is_within_1e_6_of_float64_relative_to_the_magnitudes(shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    x = torch.randn(shape) + 1
    (total,), _ = run_op("aten.sum.default", x)
    assert abs(total.double() - x.double().sum()) <= 1e-6 * x.double().abs().sum()
    (columns,), _ = run_op("aten.sum.dim_IntList", x, [0])
    assert ((columns.double() - x.double().sum(0)).abs() <= 1e-6 * x.double().abs().sum(0)).all()


@pytest.mark.parametrize("rows", [2, 4, 31, 32, 33])
@pytest.mark.parametrize("columns", [65, 700])
def test_columns_of_a_few_rows_are_reduced(rows: int, columns: int) -> None:
    torch.manual_seed(rows)
    x = torch.randn(3, rows, columns)
    x[0, 1, 5], x[2, rows - 1, columns - 1], x[1, 0, 64] = math.nan, math.nan, -math.inf
    for target in ("amax.default", "amin.default"):
        check(target, x, [1])
        check(target, x.transpose(1, 2).contiguous().transpose(1, 2), [1])
    for source in (x, x[1]):
        dim = source.dim() - 2
        for target in ("sum.dim_IntList", "mean.dim", "linalg_vector_norm.default"):
            args = (2, [dim]) if "norm" in target else ([dim],)
            exact = getattr(torch.ops.aten, target.split(".")[0])(source.double(), *args)
            results = [run_op(f"aten.{target}", source, *args, threads=threads)[0][0] for threads in (1, 2)]
            torch.testing.assert_close(results[0].double(), exact, rtol=0, atol=2e-5, equal_nan=True)
            assert torch.equal(results[0].view(torch.int32), results[1].view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_integer_reductions_equal_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    x = torch.randint(0, 9, (50, 6)).to(dtype).t()
    for name in ["sum", "prod", "any", "all", "max", "min"]:
        check(f"{name}.default", x)
    check("sum.dim_IntList", x, [0])
    check("sum.dim_IntList", x, [1], dtype=torch.float32)
    check("amax.default", x, [1])
    check("cumsum.default", x, 1)
    if dtype is not torch.bool:
        check("max.dim", x, 0)
        check("argmin.default", x)


def test_nan_and_infinity_pass_through_reductions_as_in_eager() -> None:
    x = torch.randn(6, 90)
    x[2, 3], x[2, 50], x[4], x[5] = math.nan, math.nan, math.inf, -math.inf
    for target in [
        "amax.default",
        "amin.default",
        "logsumexp.default",
        "sum.dim_IntList",
        "linalg_vector_norm.default",
    ]:
        check(target, x, dim=[1])
    for target in ["max.dim", "min.dim", "argmax.default", "argmin.default"]:
        check(target, x, 1)
    check("argmax.default", torch.zeros(1, 40), 1)  # the first of equals
    check("amax.default", x.t(), [0])


def test_empty_and_zero_dimensional_operands_reduce_as_in_eager() -> None:
    check("sum.dim_IntList", torch.randn(0, 4), [0])
    check("sum.default", torch.randn(0, 4))
    check("mean.default", torch.randn(0, 4))
    check("sum.dim_IntList", torch.randn(4, 0), [0])
    check("any.default", torch.randn(4, 0))
    check("all.dim", torch.randn(4, 0), 1)
    check("sum.default", torch.tensor(3.0))
    check("amax.default", torch.tensor(3.0))
    check("cumsum.default", torch.tensor(3.0), 0)


def test_variance_of_numbers_far_from_zero_does_not_cancel() -> None:
    x = torch.randn(20, 5000) + 1000
    (ours,), _ = run_op("aten.var.correction", x, [1], correction=1)
    torch.testing.assert_close(ours.double(), x.double().var(1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("layout", ["dense", "sliced", "transposed", "expanded"])
def test_integers_of_any_type_are_reduced_as_they_lie(dtype: torch.dtype, dims: tuple[int, ...], layout: str) -> None:
    torch.manual_seed(7)
    limits = torch.iinfo(torch.uint8 if dtype is torch.bool else dtype)
    x = torch.randint(max(limits.min, -(2**62)), min(limits.max, 2**62), (5, 37, 300), dtype=torch.int64)
    x = x.remainder(2) == 0 if dtype is torch.bool else x.to(dtype)
    x = {
        "dense": x, "sliced": x[:, ::2, 11:-22], "transposed": x.permute(2, 0, 1),
        "expanded": x[:, :1].expand(-1, 9, -1),
    }[layout]
    calls: list[tuple[str, tuple[object, ...]]] = [("aten.amax.default", (x, dims)), ("aten.amin.default", (x, dims))]
    calls += [("aten.sum.dim_IntList", (x, dims))]
    calls += [("aten.prod.dim_int", (x, dims[0]))] if len(dims) == 1 else []
    calls += [("aten.any.dims", (x, dims)), ("aten.all.dims", (x, dims))] if dtype is torch.bool else []
    for target, args in calls:
        (ours,), (eager,) = run_op(target, *args)
        assert torch.equal(ours, eager), target


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("columns", [1, 2, 31, 255, 256, 257, 513])
def test_extremes_of_columns_of_integers_reach_the_ends_of_their_type(dtype: torch.dtype, columns: int) -> None:
    limits = torch.iinfo(dtype)
    x = torch.zeros(6, columns, dtype=dtype)
    x[2, ::2], x[4, 1::3] = limits.max, limits.min
    for values in (x, torch.full_like(x, limits.max), torch.full_like(x, limits.min)):
        for target in ("aten.amax.default", "aten.amin.default"):
            (ours,), (eager,) = run_op(target, values, (0,))
            assert torch.equal(ours, eager)


@pytest.mark.parametrize("columns", range(1, 10))
@pytest.mark.parametrize("rows", [2, 9, 31, 32, 33, 70])
@pytest.mark.parametrize("target", ["sum.dim_IntList", "amax.default", "amin.default"])
def test_a_few_columns_beside_those_of_other_rows_are_exact(columns: int, rows: int, target: str) -> None:
    """Sums of whole numbers have no rounding; a NaN wins in its column alone."""
    torch.manual_seed(rows)
    x = torch.randint(-99, 99, (23, rows, columns)).float()
    x[3, rows // 2, columns // 2] = math.nan
    check(target, x, (1,), rtol=0, atol=0)
    check(target, x[::2, :, : max(1, columns - 1)], (1,), rtol=0, atol=0)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 33, 100, 2047, 2049, 40_000])
def test_rows_of_halves_are_added_as_they_lie(length: int) -> None:
    """Sums of whole numbers have no rounding but that of the result."""
    torch.manual_seed(length)
    x = torch.randint(-5, 5, (3, 5, length)).half()
    for rows in (x, x[:, 1:4], x[::2], x[0, 0]):
        check("sum.dim_IntList", rows, (rows.dim() - 1,), rtol=0, atol=0)
        check("mean.dim", rows, (rows.dim() - 1,))
    check("sum.default", x, rtol=0, atol=0)


@pytest.mark.parametrize("length", [9, 16, 17, 31, 32, 33, 64, 200])
def test_products_and_extremes_of_rows_join_their_lanes(length: int) -> None:
    torch.manual_seed(length)
    x = torch.randn(50, length) + 0.5 * torch.randn(50, length).sign()
    (ours,), _ = run_op("aten.prod.dim_int", x, 1)
    torch.testing.assert_close(ours.double(), x.double().prod(1), rtol=1e-5, atol=1e-30)
    x[torch.arange(50), torch.arange(50) % length] = 9.0
    x[::7, length - 1] = math.nan
    check("amax.default", x, (1,), rtol=0, atol=0)
    check("amin.default", -x, (1,), rtol=0, atol=0)
