"""Products of bfloat16 against float64, over odd sizes, layouts and thread counts."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.kernels.elem_planner import DTYPES, MiniPlanner
from tests.kernels.rounding_of_sums import error_bound, error_of
from torchipu._kernels.table.conv_blocked import Activation
from torchipu._kernels.table.gemm import SUM_BLOCK
from torchipu.host.emit.bfloat_matmul import emit_bfloat_product
from torchipu.host.emit.vectors import has_bfloat_products

pytestmark = pytest.mark.skipif(not has_bfloat_products(), reason="this processor does not multiply bfloat16")
BFLOAT = torch.bfloat16
SIZES = [
    (1, 1, 1),
    (3, 5, 7),
    (1, 8, 33),  # dot products from here on where columns lie dense
    (2, 9, 64),
    (3, 45, 31),
    (4, 130, 700),
    (5, 33, 2),
    (14, 32, 16),
    (15, 33, 17),
    (16, 48, 18),
    (33, 65, 66),
    (29, 131, 385),  # the last tile, panel and block of summands have one of each
    (28, 16, 1024),  # rows a multiple of a page apart
    (70, 100, 1024),
    (70, 100, 771),
    (113, 1100, 40),  # several blocks of columns
    (521, 60, 300),  # several blocks of rows
    (40, 10, 5000),
]
LAYOUTS = list(product((False, True), repeat=2))


def whole(*shape: int, turned: bool = False, most: int = 8) -> torch.Tensor:
    """Return whole numbers: all of their products, and sums of these, are exact."""
    *batch, rows, columns = shape
    drawn = torch.randint(-most, most + 1, (*batch, columns, rows) if turned else shape).to(BFLOAT)
    return drawn.mT if turned else drawn


def multiplied(
    a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None = None, *, onto: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32, threads: int = 1, alpha: float = 1.0, beta: float = 1.0,
    activation: Activation = Activation.NONE, kernels: list[str] | None = None,
) -> torch.Tensor:
    plan = MiniPlanner(threads)
    shape = (*a.shape[:-1], b.shape[-1])
    out = plan.scratch(shape, DTYPES[dtype]) if onto is None else plan.hold(onto)
    added = None if addend is None else plan.hold(addend)
    emit_bfloat_product(
        plan, out, plan.hold(a), plan.hold(b), added, alpha, beta, adds=onto is not None, activation=activation,
    )
    if kernels is not None:
        kernels += plan.steps
    return plan.fetch(out).clone()




@pytest.mark.parametrize("turned", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_sums_of_whole_numbers_are_exact(m: int, n: int, k: int, turned: tuple[bool, bool]) -> None:
    torch.manual_seed(m + n + k)
    a, b = whole(m, k, turned=turned[0]), whole(k, n, turned=turned[1])
    exact = a.double() @ b.double()
    for threads in (1, 3):
        assert torch.equal(multiplied(a, b, threads=threads).double(), exact)
        assert torch.equal(multiplied(a, b, threads=threads, dtype=BFLOAT), exact.to(BFLOAT))


@pytest.mark.parametrize("turned", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_results_are_as_close_as_those_of_eager(m: int, n: int, k: int, turned: tuple[bool, bool]) -> None:
    torch.manual_seed(m + n + k)
    a = (torch.randn(k, m).t() if turned[0] else torch.randn(m, k)).to(BFLOAT)
    b = (torch.randn(n, k).t() if turned[1] else torch.randn(k, n)).to(BFLOAT)
    exact = a.double() @ b.double()
    results = [multiplied(a, b, threads=threads) for threads in (1, 2, 4)]
    assert error_of(results[0], exact) <= 2 * error_bound(k, min(k, SUM_BLOCK))
    assert all(torch.equal(result, results[0]) for result in results[1:])
    rounded = multiplied(a, b, dtype=BFLOAT)
    assert torch.equal(rounded, results[0].to(BFLOAT))
    assert error_of(rounded, exact) <= 1.01 * error_of(torch.mm(a, b), exact) + 1e-12


@pytest.mark.parametrize(("m", "n", "k"), [(40, 70, 386), (113, 1100, 40), (29, 131, 385)])
def test_how_operands_lie_does_not_change_a_bit(m: int, n: int, k: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(m, k).to(BFLOAT), torch.randn(k, n).to(BFLOAT)
    results = [
        multiplied(left, right)
        for left in (a, a.t().contiguous().t(), torch.cat([a, a[:, :3]], 1)[:, :k])
        for right in (b, b.t().contiguous().t(), torch.cat([b, b[:, :3]], 1)[:, :n])
    ]
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_few_rows_meet_dense_columns_as_they_lie(rows: int) -> None:
    kernels: list[str] = []
    a, b = whole(rows, 70), whole(70, 90, turned=True)
    assert torch.equal(multiplied(a, b, kernels=kernels).double(), a.double() @ b.double())
    assert kernels == ["bfloat_dots"]


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (-1, 1)], ids=str)
@pytest.mark.parametrize("rows", [8, 9, 77])
def test_a_column_is_made_of_rows_as_they_lie(rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    kernels: list[str] = []
    a, b = whole(rows, 70), whole(70, 1)
    addend = torch.randint(-9, 9, [rows if size < 0 else size for size in shape]).float()
    exact = 0.5 * (a.double() @ b.double()) + 2.0 * addend.double()
    for threads in (1, 3):
        made = multiplied(a, b, addend, dtype=dtype, threads=threads, alpha=0.5, beta=2.0, kernels=kernels)
        assert torch.equal(made, exact.to(dtype))
    there = torch.randint(-9, 9, (rows, 1)).float()
    assert torch.equal(multiplied(a, b, onto=there.clone(), kernels=kernels).double(), there + a.double() @ b.double())
    assert kernels == ["bfloat_dots"] * 3


@pytest.mark.parametrize(("m", "dtype"), [(3, torch.float32), (3, BFLOAT), (17, torch.float32), (17, BFLOAT)])
@pytest.mark.parametrize("shape", [(33,), (1, 33), (-1, 1), (-1, 33), (1,)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, 2.0)])
def test_addends_are_scaled_and_broadcast(
    m: int, dtype: torch.dtype, shape: tuple[int, ...], alpha: float, beta: float,
) -> None:
    torch.manual_seed(m)
    addend = torch.randint(-9, 9, [m if size < 0 else size for size in shape]).float()
    a, b = whole(m, 65), whole(65, 33, turned=True)
    exact = alpha * (a.double() @ b.double()) + beta * addend.double()
    assert torch.equal(multiplied(a, b, addend, dtype=dtype, alpha=alpha, beta=beta), exact.to(dtype))


@pytest.mark.parametrize("m", [3, 17])
def test_a_product_is_added_onto_what_is_there(m: int) -> None:
    a, b, there = whole(m, 385), whole(385, 45, turned=True), torch.randint(-9, 9, (m, 45)).float()
    exact = there.double() + a.double() @ b.double()
    assert torch.equal(multiplied(a, b, onto=there.clone()).double(), exact)


@pytest.mark.parametrize("m", [3, 17])
@pytest.mark.parametrize(("activation", "function"), [
    (Activation.RELU, torch.relu), (Activation.GELU, torch.nn.functional.gelu),
    (Activation.SILU, torch.nn.functional.silu),
])
def test_the_whole_is_activated_before_it_is_rounded(m: int, activation: Activation, function: object) -> None:
    assert callable(function)
    torch.manual_seed(0)
    a, b, bias = torch.randn(m, 30).to(BFLOAT), torch.randn(45, 30).to(BFLOAT).t(), torch.randn(45)
    exact = function(a.double() @ b.double() + bias.double())
    result = multiplied(a, b, bias, activation=activation)
    torch.testing.assert_close(result.double(), exact, atol=2e-5, rtol=2e-6)
    assert torch.equal(multiplied(a, b, bias, activation=activation, dtype=BFLOAT), result.to(BFLOAT))


@pytest.mark.parametrize("turned", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(2, 40, 30), (31, 50, 41), (197, 64, 200), (20, 33, 1)])
def test_each_matrix_of_a_batch_is_multiplied_and_some_share_one(
    m: int, n: int, k: int, turned: tuple[bool, bool],
) -> None:
    torch.manual_seed(m)
    a, b = whole(9, m, k, turned=turned[0]), whole(9, k, n, turned=turned[1])
    for left, right in ((a, b), (a[:1].expand(9, m, k), b), (a, b[:1].expand(9, k, n))):
        exact = left.double() @ right.double()
        for threads in (1, 3):
            assert torch.equal(multiplied(left, right, threads=threads).double(), exact)
            assert torch.equal(multiplied(left, right, threads=threads, dtype=BFLOAT), exact.to(BFLOAT))


@pytest.mark.parametrize("shape", [(0, 5, 6), (5, 0, 6), (5, 6, 0), (0, 0, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT])
def test_sizes_of_zero(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = shape
    a, b = torch.ones(m, k, dtype=BFLOAT), torch.ones(k, n, dtype=BFLOAT)
    assert torch.equal(multiplied(a, b, dtype=dtype), torch.zeros(m, n, dtype=dtype))
    if k == 0:
        assert torch.equal(multiplied(a, b, torch.full((n,), 3.0), dtype=dtype), torch.full((m, n), 3.0, dtype=dtype))


@pytest.mark.parametrize(("m", "k"), [(2, 35), (20, 35), (20, 36)])
def test_infinities_and_what_is_no_number_reach_their_row_and_column_alone(m: int, k: int) -> None:
    a, b = torch.ones(m, k, dtype=BFLOAT), torch.ones(40, k, dtype=BFLOAT).t()
    a[1, k - 1], b[k - 1, 39] = float("inf"), float("nan")
    for dtype in (torch.float32, BFLOAT):
        result = multiplied(a, b, dtype=dtype)
        expected = (a.double() @ b.double()).to(dtype)
        assert torch.equal(result.nan_to_num(7.0, 8.0), expected.nan_to_num(7.0, 8.0))
        assert result.isnan().sum() == m
        assert result.isinf().sum() == 39


@pytest.mark.parametrize("m", [2, 20])
@pytest.mark.parametrize("inner", [35, 36])
def test_what_lies_behind_a_row_or_a_column_is_not_read(m: int, inner: int) -> None:
    a, b = (torch.full((rows, inner + 4 + inner % 2), float("nan"), dtype=BFLOAT)[:, :inner] for rows in (m, 40))
    a[:], b[:] = whole(m, inner), whole(40, inner)
    for left, right in ((a, b.t()), (a, b.t().contiguous()), (a.t().contiguous().t(), b.t())):
        assert torch.equal(multiplied(left, right).double(), a.double() @ b.double().t())


@pytest.mark.parametrize("m", [2, 20])
def test_subnormal_operands_and_sums_are_zero(m: int) -> None:
    a, b = torch.full((m, 34), 1e-39, dtype=BFLOAT), torch.full((40, 34), 2.0**60, dtype=BFLOAT).t()
    assert a.any()
    assert not multiplied(a, b).any()  # 3.4e-20 without
    small = torch.full((m, 34), 2.0**-70, dtype=BFLOAT)
    assert not multiplied(small, small.t()[:, :1].expand(34, 40).contiguous()).any()


def test_results_beyond_the_largest_bfloat_are_infinite() -> None:
    a, b = torch.full((20, 2), 2.0**64, dtype=BFLOAT), torch.full((2, 40), 2.0**63, dtype=BFLOAT)
    assert multiplied(a, b, dtype=BFLOAT).isinf().all()
