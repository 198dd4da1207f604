"""Reductions as users call them, against eager float64: dimensions, dtypes, layouts, ties, NaN, gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.judge import check

Case = Callable[[torch.Tensor], Any]
INF = math.inf

FLOATING: dict[str, Case] = {
    "sum": lambda x: x.sum(),
    "sum of one": lambda x: x.sum(1),
    "sum kept": lambda x: x.sum((0, 2), keepdim=True),
    "sum in float": lambda x: x.sum(1, dtype=torch.float32),
    "mean": lambda x: x.mean(),
    "mean of two": lambda x: x.mean((0, 1)),
    "mean kept": lambda x: x.mean(-1, True),
    "amax": lambda x: x.amax((0, 2)),
    "amin": lambda x: x.amin(1, True),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max of one": lambda x: x.max(1),
    "min of one": lambda x: x.min(0, True),
    "aminmax": lambda x: x.aminmax(dim=2),
    "argmax": lambda x: x.argmax(),
    "argmin of one": lambda x: x.argmin(1, True),
    "prod": lambda x: (x * 0.3 + 1).prod(),
    "prod of one": lambda x: x.prod(1),
    "var": lambda x: x.var(),
    "var of two": lambda x: x.var((0, 1), correction=0),
    "std": lambda x: x.std(1, keepdim=True),
    "std corrected by two": lambda x: x.std((0, 2), correction=2),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 2)),
    "any": lambda x: (x > 0).any(1),
    "all": lambda x: (x > -1).all((0, 1)),
    "any of floats": lambda x: x.any(2),
    "logsumexp": lambda x: x.logsumexp(1),
    "logsumexp of two": lambda x: x.logsumexp((0, 2), keepdim=True),
    "count_nonzero": lambda x: (x > 0).count_nonzero(1),
    "count_nonzero of all": lambda x: x.relu().count_nonzero(),
    "nansum": lambda x: x.nansum(1),
    "nanmean": lambda x: x.nanmean((0, 1), True),
    "norm of order 0": lambda x: torch.linalg.vector_norm(x, 0, 1),
    "norm of order -2": lambda x: torch.linalg.vector_norm(x, -2, 1),
    "norm of order 3": lambda x: torch.linalg.vector_norm(x, 3, (0, 2), keepdim=True),
    "norm of order 1/2": lambda x: torch.linalg.vector_norm(x, 0.5, 1),
    "norm": lambda x: x.norm(),
    "norm of order 1": lambda x: x.norm(1, dim=1),
    "norm of all of order 4": lambda x: x.norm(4),
    "Frobenius norm": lambda x: torch.linalg.matrix_norm(x),
    "dist": lambda x: torch.dist(x, x.detach() * 2 + 1, 3),
    "renorm": lambda x: x.renorm(2, 0, 1.5),
    "cdist": lambda x: torch.cdist(x, x.flip(0) + 0.5),
    "cdist of order 1": lambda x: torch.cdist(x, x.flip(0) + 0.5, 1),
    "cdist of order 3": lambda x: torch.cdist(x, x.flip(0) + 0.5, 3),
    "trace": lambda x: x[0].trace(),
    "trapezoid": lambda x: torch.trapezoid(x, dim=1),
}
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.randn(5, 6, 7),
    "permuted": lambda: torch.randn(7, 5, 6).permute(1, 2, 0),
    "sliced": lambda: torch.randn(5, 12, 9)[:, ::2, 1:8],
    "expanded": lambda: torch.randn(1, 6, 7).expand(5, 6, 7),
}
# The derivative of trace writes by index, and those of norms take signs: owned by other records.
ELSEWHERE = ("aten.index_fill.int_Tensor", "aten.sgn.default")


# Each case meets two of the layouts, and all layouts meet a quarter of the cases.
PAIRS = [(name, list(LAYOUTS)[(turn + at) % 4]) for at, name in enumerate(FLOATING) for turn in (0, 2)]


@pytest.mark.parametrize(("name", "layout"), PAIRS)
def test_values_and_gradients_of_floats(name: str, layout: str) -> None:
    torch.manual_seed(len(name))
    x = LAYOUTS[layout]()
    # Powers far from 1 lose digits in float32 against float64.
    tolerance = 5e-4 if name.startswith(("prod", "norm of order", "dist", "norm of all", "cdist")) else 5e-5
    check(FLOATING[name], x.requires_grad_(), tolerance=tolerance, allowed=ELSEWHERE)


FINE = [name for name in FLOATING if not name.startswith(("cdist", "norm of order -2"))]  # these magnify roundings


@pytest.mark.parametrize("name", FINE)
def test_values_of_halves_are_computed_in_float(name: str) -> None:
    torch.manual_seed(len(name))
    # Spread over a coarse grid: no two halves are equal, and none rounds across a condition.
    x = ((torch.randperm(210).reshape(5, 6, 7) - 105.5) / 64).half()
    check(FLOATING[name], x, tolerance=2e-2 if "prod" in name else 6e-3, allowed=ELSEWHERE)


INTEGERS: dict[str, Case] = {
    "sum": lambda x: x.sum(1),
    "sum of all": lambda x: x.sum(),
    "sum in int32": lambda x: x.sum(1, dtype=torch.int32),
    "sum in float": lambda x: x.sum((0, 2), dtype=torch.float32),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((0, 2)),
    "amin": lambda x: x.amin(1),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max of one": lambda x: x.max(1),
    "min of one": lambda x: x.min(2, True),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(),
    "mean in float": lambda x: x.mean(1, dtype=torch.float32),
    "count_nonzero": lambda x: x.count_nonzero((0, 1)),
    "aminmax": lambda x: x.aminmax(dim=1),
    "nansum": lambda x: x.nansum(1),
}
TYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", INTEGERS)
def test_values_and_types_of_integers(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(len(name))
    low = 0 if dtype in (torch.bool, torch.uint8) else -9
    check(INTEGERS[name], torch.randint(low, 10, (4, 5, 6)).to(dtype))
    check(INTEGERS[name], torch.randint(low, 10, (6, 4, 5)).to(dtype).permute(1, 2, 0))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "min"])
def test_the_first_of_equal_extremes_is_named(name: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (30, 70)).to(dtype)
    for dim in (0, 1):
        check(lambda x, dim=dim: getattr(x, name)(dim), x)
    if name.startswith("arg"):
        check(lambda x: getattr(x, name)(), x)


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min"])
def test_gradients_of_ties_are_shared_out_as_in_eager(name: str) -> None:
    x = torch.randint(0, 3, (4, 9)).float().requires_grad_()
    check(lambda x: getattr(x, name)(), x)
    if name.startswith("a"):
        check(lambda x: getattr(x, name)(1), x)


EXTREMES: dict[str, Case] = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(0),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(0),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(),
    "prod": lambda x: x.prod(1),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(0),
    "logsumexp": lambda x: x.logsumexp(1),
    "nansum": lambda x: x.nansum(1),
    "nanmean": lambda x: x.nanmean(0),
    "count_nonzero": lambda x: x.count_nonzero(1),
    "norm": lambda x: x.norm(dim=1),
    "norm inf": lambda x: x.norm(INF, 1),
    "norm -inf": lambda x: x.norm(-INF, 1),
    "norm 0": lambda x: x.norm(0, 1),
    "norm 3": lambda x: x.norm(3, 1),
    "aminmax": lambda x: x.aminmax(dim=1),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_nan_and_infinity_come_out_as_in_eager(name: str) -> None:
    x = torch.randn(8, 40)
    x[1, 3] = x[1, 20] = math.nan
    x[2, 5], x[3, 6] = INF, -INF
    x[4, 7], x[4, 8] = INF, -INF
    x[5], x[6], x[7] = INF, -INF, math.nan
    check(EXTREMES[name], x, tolerance=1e-4)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_empty_operands(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager warns that there are no degrees of freedom
        for function in (torch.sum, torch.mean, torch.prod, torch.any, torch.all, torch.norm, torch.var, torch.nansum):
            check(function, x)
        last = len(shape) - 1
        for function in (torch.sum, torch.mean, torch.prod, torch.any, torch.all, torch.logsumexp, torch.count_nonzero):
            check(lambda x, f=function: f(x, last), x)
    if shape == (0, 4):
        for function in (torch.amax, torch.max, torch.argmin, torch.median, torch.mode):
            check(lambda x, f=function: f(x, 1), x)
    if len(shape) == 1:
        check(lambda x: x.histc(4, 0, 1), x)


def test_numbers_without_dimensions() -> None:
    x = torch.tensor(1.7, requires_grad=True)
    for function in (torch.sum, torch.mean, torch.prod, torch.max, torch.min, torch.amax, torch.norm):
        check(function, x)
    check(lambda x: x.max(0), x, allowed=("aten.scatter.src",))
    check(lambda x: x.argmax(), x.detach())
    check(lambda x: x.logsumexp(0), x)
    check(lambda x: x.sum(-1), x)


def test_too_few_elements_for_the_correction_give_nan_or_infinity() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(lambda x: x.var(1), torch.randn(3, 1))
        check(lambda x: x.std(1, correction=5), torch.randn(3, 4))


def test_gradient_of_a_product_with_zeros() -> None:
    x = torch.randn(4, 5)
    x[1, 2] = x[2, 1] = x[2, 3] = 0
    check(lambda x: x.prod(1), x.requires_grad_())
    check(lambda x: x.prod(), x)


@pytest.mark.parametrize("order", [1, 2, math.inf])
def test_the_norm_of_one_element_is_its_magnitude_also_where_its_square_is_out_of_range(order: float) -> None:
    x = torch.tensor([[3e38], [-1e-30], [-2.0], [0.0], [math.inf], [math.nan]])
    for function in (
        lambda x: torch.linalg.vector_norm(x, order, dim=1), lambda x: torch.linalg.vector_norm(x[:1], order),
        lambda x: torch.linalg.vector_norm(x[:, :, None], order, dim=(1, 2), keepdim=True),
    ):
        torch._dynamo.reset()
        found = torch.compile(function, backend="ipu")(x)
        torch.testing.assert_close(found.double(), function(x.double()), rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("count", "dim"), [(3, 1), (7, 2), (33, 1), (5000, 2), (1, 1)])
def test_the_spread_of_equal_elements_is_zero_and_has_no_gradient(count: int, dim: int, dtype: torch.dtype) -> None:
    """A mean that is off by a rounding would leave a spread, whose root has a gradient of any size."""
    torch._dynamo.reset()
    sizes = [6, 1, 9] if dim == 1 else [6, 9, 1]
    values = torch.randn(sizes, generator=torch.Generator().manual_seed(count)).to(dtype)
    x = values.repeat_interleave(count, dim).requires_grad_()
    spread, mean = torch.compile(lambda x: torch.std_mean(x, dim, correction=0), backend="ipu")(x)
    assert not spread.any()
    assert torch.equal(mean, values.squeeze(dim))
    (gradient,) = torch.autograd.grad(spread.sum(), x)
    assert not gradient.any()
