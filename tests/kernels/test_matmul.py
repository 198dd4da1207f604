"""Matrix products against float64 torch, over odd sizes, layouts and thread counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.immediate import run_op
from tests.kernels.rounding_of_sums import error_bound, error_of
from torchipu._kernels.abi import run_kernel
from torchipu._kernels.table.gemm import SUM_BLOCK
from torchipu._kernels.table.matmul import MATMUL, MatmulScalars
from torchipu.host.emit.matmul import emit_product
from torchipu.ir.types import DType
from torchipu.ops import matmul  # noqa: F401
from torchipu.optable.planner import Joining

SIZES = [
    (1, 1, 1),
    (3, 5, 7),
    (14, 32, 16),
    (15, 33, 17),
    (40, 10, 256),
    (40, 256, 320),
    (1, 100, 50),
    (113, 129, 400),
    (70, 200, 1100),
    (45, 501, 401),  # computed transposed
    (29, 131, 385),  # the last tile, panel and block of summands have one of each
    (621, 160, 70),  # several blocks of rows
    (1, 301, 900),  # wide tiles, several blocks of summands, columns left over
    (4, 784, 130),
    (7, 145, 520),
    (9, 97, 65),
    (10, 784, 130),  # wide tiles of several rows: two and one vectors left over, and less than one
    (19, 137, 520),
    (28, 96, 65),
    (301, 400, 40),  # rows across, few summands: both packed
    (50, 200, 1),  # wide tiles of few summands
    (33, 883, 4),
    (119, 100, 7),
    (197, 192, 197),  # both as they lie
    (300, 96, 2100),  # rows across, many summands
    (270, 700, 96),  # rows as they lie, panels packed
    (270, 800, 96),
    (200, 700, 300),
    (301, 290, 1024),  # rows a multiple of a page apart, packed by each item
    (70, 290, 1024),  # the same, few: packed ahead
    (1100, 1056, 65),  # rows across: several blocks of columns
]


def matrix(rows: int, columns: int, transposed: bool) -> torch.Tensor:
    return torch.randn(columns, rows).t() if transposed else torch.randn(rows, columns)


def bound(inner: int) -> float:
    return 2e-6 * inner**0.5 * 4


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("is_hoisting", [False, True])  # who packs the right operand: each item, or a step of its own
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_mm_equals_the_float64_product(
    m: int, n: int, k: int, is_hoisting: bool, transposed: tuple[bool, bool]
) -> None:
    torch.manual_seed(m + n + k)
    a, b = matrix(m, k, transposed[0]), matrix(k, n, transposed[1])
    results = [
        run_op(
            "aten.mm.default", {"self": a, "mat2": b}, {}, [((m, n), DType.FLOAT)],
            planner=MiniPlanner(threads, is_hoisting=is_hoisting),
        )[0]
        for threads in (1, 2, 4)
    ]
    torch.testing.assert_close(results[0].double(), a.double() @ b.double(), atol=bound(k) * 4, rtol=1e-5)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(("m", "n", "k"), [
    (301, 290, 1024), (70, 700, 300), (600, 96, 700), (26, 210, 500), (150, 200, 50),
])
def test_where_operands_are_packed_does_not_change_a_bit(m: int, n: int, k: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(m, k), torch.randn(k, n)
    results = [
        run_op(
            "aten.mm.default", {"self": left, "mat2": right}, {}, [((m, n), DType.FLOAT)],
            planner=MiniPlanner(2, is_hoisting=is_hoisting),
        )[0]
        for is_hoisting in (False, True)
        for left in (a, a.t().contiguous().t())
        for right in (b, b.t().contiguous().t())
    ]
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(("m", "n"), [(8, 400), (60, 96), (64, 640), (200, 70)])
def test_long_sums_round_like_short_ones(m: int, n: int, transposed: tuple[bool, bool]) -> None:
    torch.manual_seed(m)
    a, b = matrix(m, 5000, transposed[0]), matrix(5000, n, transposed[1])
    result = run_op("aten.mm.default", {"self": a, "mat2": b}, {}, [((m, n), DType.FLOAT)])[0]
    assert error_of(result, a.double() @ b.double()) < error_bound(5000, SUM_BLOCK)


class JoiningPlanner(MiniPlanner):
    """Keeps how calls of the last step are joined, and the scratch memory that they ask for."""

    joining: Joining | None = None
    scratch_bytes = 0

    def step(self, *call: Any, **named: Any) -> None:
        self.joining, self.scratch_bytes = named.get("joining"), named.get("scratch_bytes", 0)
        super().step(*call, **named)


@pytest.mark.parametrize(("m", "n", "inner"), [
    *((m, n, inner) for m, n in ((20, 150), (200, 60)) for inner in (1, 31, 40, 300, 400, 700)),
    (100, 2100, 40),  # items that pack both operands
])
def test_runs_joined_into_one_call_add_up_as_one_after_another(m: int, n: int, inner: int) -> None:
    torch.manual_seed(inner + m)
    runs, a, b = 5, torch.randn(5 * inner, m), torch.randn(5 * inner, n)
    start = torch.randn(m, n)
    results = [start.clone(), start.clone()]
    for run in range(runs):
        planner, among = JoiningPlanner(), slice(run * inner, (run + 1) * inner)
        out, left, right = (planner.hold(of) for of in (results[0], a[among].t(), b[among]))
        emit_product(planner, out, left, right, adds=True)
        if run == 0:
            assert planner.joining is not None
            joined, num_bytes = planner.joining(runs), planner.scratch_bytes
    addresses = [of.data_ptr() for of in (results[1], a, b)]
    run_kernel(MATMUL, addresses, joined.ints, MatmulScalars(1.0, 1.0), joined.items, joined.grain, 2, num_bytes)
    assert torch.equal(*results)
    expected = start.double() + a.double().t() @ b.double()
    torch.testing.assert_close(results[0].double(), expected, atol=bound(runs * inner) * 4, rtol=1e-5)
    if inner > SUM_BLOCK // 2:  # as long as a block
        assert error_of(results[0], expected) < 1.2 * error_bound(runs * inner, SUM_BLOCK)


@pytest.mark.parametrize("rows", [1, 3, 4, 8, 9])
@pytest.mark.parametrize(("columns", "inner"), [(8, 1), (9, 33), (93, 600)])
def test_few_rows_meet_half_weights_as_they_meet_these_as_floats(rows: int, columns: int, inner: int) -> None:
    torch.manual_seed(rows * columns + inner)
    x, weight, bias = torch.randn(rows, inner).half(), torch.randn(columns, inner).half(), torch.randn(columns).half()

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x, weight.t())

    def compiled(*operands: torch.Tensor, threads: int) -> torch.Tensor:
        torch._dynamo.reset()
        options = {"host_threads": threads}
        return torch.compile(layer, backend="ipu", dynamic=False, options=options)(*operands)

    wanted = compiled(x.float(), weight.float(), bias.float(), threads=1).half()
    assert torch.equal(compiled(x, weight, bias, threads=1), wanted)
    assert torch.equal(compiled(x, weight, bias, threads=3), wanted)


@pytest.mark.parametrize(("rows", "is_hoisting", "are_read"), [(4, False, True), (4, True, False), (9, False, False)])
def test_half_weights_are_read_as_they_lie_but_for_many_rows_or_once_for_several_calls(
    rows: int, is_hoisting: bool, are_read: bool,
) -> None:
    planner = MiniPlanner(is_hoisting=is_hoisting)
    operands = {"self": torch.randn(rows, 40).half(), "mat2": torch.randn(50, 40).half().t()}
    (result,) = run_op("aten.mm.default", operands, {}, [((rows, 50), DType.HALF)], planner=planner)
    assert ("matmul_dots" in planner.steps) is are_read  # floats are row-major here
    torch.testing.assert_close(result, operands["self"] @ operands["mat2"], atol=2e-2, rtol=2e-3)


def test_mm_copies_an_operand_with_no_unit_stride() -> None:
    a, b = torch.randn(6, 20)[:, ::2], torch.randn(10, 8)
    (result,) = run_op("aten.mm.default", {"self": a, "mat2": b}, {}, [((6, 8), DType.FLOAT)])
    torch.testing.assert_close(result, a @ b)


@pytest.mark.parametrize("shape", [(33,), (1, 33), (17, 1), (17, 33), (1,)])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 1), (1, 2.0), (2.0, 0)])
def test_addmm_scales_and_broadcasts(shape: tuple[int, ...], alpha: float, beta: float) -> None:
    bias, a, b = torch.randn(shape), torch.randn(17, 65), torch.randn(65, 33)
    (result,) = run_op(
        "aten.addmm.default",
        {"self": bias, "mat1": a, "mat2": b},
        {"alpha": alpha, "beta": beta},
        [((17, 33), DType.FLOAT)],
    )
    torch.testing.assert_close(result, torch.addmm(bias, a, b, alpha=alpha, beta=beta), atol=1e-4, rtol=1e-5)


def test_addmm_with_beta_zero_ignores_a_nan_bias() -> None:
    (result,) = run_op(
        "aten.addmm.default",
        {"self": torch.full((4,), float("nan")), "mat1": torch.ones(3, 5), "mat2": torch.ones(5, 4)},
        {"alpha": 1, "beta": 0},
        [((3, 4), DType.FLOAT)],
    )
    assert torch.equal(result, torch.full((3, 4), 5.0))


@pytest.mark.parametrize("transposed", [False, True])
def test_bmm_and_baddbmm_serve_each_matrix_of_the_batch(transposed: bool) -> None:
    a = torch.randn(5, 31, 40)
    b = torch.randn(5, 50, 40).transpose(1, 2) if transposed else torch.randn(5, 40, 50)
    s = torch.randn(5, 1, 50)
    shapes = [((5, 31, 50), DType.FLOAT)]
    (product,) = run_op("aten.bmm.default", {"self": a, "mat2": b}, {}, shapes, 2)
    torch.testing.assert_close(product, torch.bmm(a, b), atol=1e-4, rtol=1e-5)
    (total,) = run_op(
        "aten.baddbmm.default", {"self": s, "batch1": a, "batch2": b}, {"alpha": 2, "beta": 0.5}, shapes, 2
    )
    torch.testing.assert_close(total, torch.baddbmm(s, a, b, alpha=2, beta=0.5), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("rows", "columns", "inner"), [(33, 200, 40), (130, 300, 128), (230, 64, 70)])
def test_layouts_of_a_batch_of_many_do_not_change_a_bit(rows: int, columns: int, inner: int) -> None:
    torch.manual_seed(rows)
    a, b = torch.randn(9, rows, inner), torch.randn(9, inner, columns)
    results = [
        run_op("aten.bmm.default", {"self": left, "mat2": right}, {}, [((9, rows, columns), DType.FLOAT)], 2)[0]
        for left in (a, a.mT.contiguous().mT)
        for right in (b, b.mT.contiguous().mT)
    ]
    torch.testing.assert_close(results[0].double(), a.double() @ b.double(), atol=bound(inner) * 4, rtol=1e-5)
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.parametrize(("rows", "inner"), [(8, 1), (17, 5), (64, 9), (301, 130), (40, 9000)])
@pytest.mark.parametrize("addend", ["none", "value", "column", "matrix of one"])
@pytest.mark.parametrize(("alpha", "beta"), [(2, 0.5), (1, 1)])
def test_a_column_is_the_product_of_each_row_with_one_vector(
    rows: int, inner: int, addend: str, alpha: int, beta: float,
) -> None:
    torch.manual_seed(rows)
    a, b = torch.randn(rows, inner), torch.randn(1, inner).t()  # as a layer with one feature has its weights
    added = {"value": torch.randn(1), "column": torch.randn(rows, 1), "matrix of one": torch.randn(1, 1)}.get(addend)
    operands = {"mat1": a, "mat2": b} if added is not None else {"self": a, "mat2": b}
    given = {} if added is None else {"self": added}
    target, attrs = ("aten.mm.default", {}) if added is None else ("aten.addmm.default", {"alpha": alpha, "beta": beta})
    planner = MiniPlanner(3)
    (result,) = run_op(target, given | operands, attrs, [((rows, 1), DType.FLOAT)], planner=planner)
    exact = a.double() @ b.double()
    exact = exact if added is None else alpha * exact + beta * added.double()
    torch.testing.assert_close(result.double(), exact, atol=2 * bound(inner), rtol=1e-5)
    assert ("matmul_dots" in planner.steps) is (1 < inner < 9000)
    (alone,) = run_op(target, given | operands, attrs, [((rows, 1), DType.FLOAT)], planner=MiniPlanner(1))
    assert torch.equal(result, alone)


def test_columns_of_a_batch_and_of_a_vector() -> None:
    a, b = torch.randn(7, 33, 20), torch.randn(7, 20, 1)
    planner = MiniPlanner(2)
    (product,) = run_op("aten.bmm.default", {"self": a, "mat2": b}, {}, [((7, 33, 1), DType.FLOAT)], planner=planner)
    torch.testing.assert_close(product, a @ b, atol=1e-5, rtol=1e-5)
    assert planner.steps == ["matmul_dots"]


@pytest.mark.parametrize("activation", [torch.relu, torch.nn.functional.gelu, torch.nn.functional.silu])
def test_a_layer_with_one_feature_is_activated_and_trains(activation: Any) -> None:
    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return activation(torch.nn.functional.linear(x, weight, bias))

    given = [torch.randn(50, 33), torch.randn(1, 33), torch.randn(1)]
    found = [each.clone().requires_grad_() for each in given]
    wanted = [each.double().requires_grad_() for each in given]
    out = torch.compile(layer, backend="ipu", dynamic=False)(*found)
    exact = layer(*wanted)
    out.square().sum().backward()
    exact.square().sum().backward()
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=1e-5)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.grad.double(), other.grad, atol=1e-4, rtol=1e-4)  # type: ignore[union-attr]


def test_no_summands_give_zeros() -> None:
    (result,) = run_op(
        "aten.mm.default", {"self": torch.ones(3, 0), "mat2": torch.ones(0, 4)}, {}, [((3, 4), DType.FLOAT)]
    )
    assert torch.equal(result, torch.zeros(3, 4))


def test_nan_and_infinity_stay_in_their_row_and_column() -> None:
    a, b = torch.ones(20, 40), torch.ones(40, 50)
    a[3, 7], b[11, 49] = float("nan"), float("inf")
    (result,) = run_op("aten.mm.default", {"self": a, "mat2": b}, {}, [((20, 50), DType.FLOAT)])
    torch.testing.assert_close(result, a @ b, equal_nan=True)


@pytest.mark.parametrize(("m", "n", "k"), [(3, 211, 900), (8, 300, 70), (50, 211, 5)])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 2.0)])
def test_addmm_of_wide_tiles_scales_and_adds_a_row_or_a_matrix(
    m: int, n: int, k: int, alpha: float, beta: float
) -> None:
    torch.manual_seed(m + n + k)
    a, b = torch.randn(m, k), torch.randn(k, n)
    for bias in (torch.randn(n), torch.randn(m, n)):
        (result,) = run_op(
            "aten.addmm.default", {"self": bias, "mat1": a, "mat2": b}, {"alpha": alpha, "beta": beta},
            [((m, n), DType.FLOAT)],
        )
        expected = beta * bias.double() + alpha * (a.double() @ b.double())
        torch.testing.assert_close(result.double(), expected, atol=bound(k) * 4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(300,), (1, 300), (50, 300), (50, 1), (1,)])
def test_addmm_of_few_rows_and_large_weights_adds_any_bias(shape: tuple[int, ...]) -> None:
    bias, a, b = torch.randn(shape), torch.randn(50, 700), torch.randn(300, 700).t()
    for row_major in (b, b.contiguous()):
        results = [
            run_op(
                "aten.addmm.default",
                {"self": bias, "mat1": a, "mat2": row_major},
                {"alpha": 1, "beta": 1},
                [((50, 300), DType.FLOAT)],
                threads,
            )[0]
            for threads in (1, 2, 4)
        ]
        expected = bias.double() + a.double() @ b.double()
        torch.testing.assert_close(results[0].double(), expected, atol=bound(700) * 4, rtol=1e-5)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(("rows", "columns", "inner"), [
    (3, 1, 3), (1, 3, 3), (3, 3, 3), (4, 4, 4), (4, 1, 4), (2, 2, 2), (1, 1, 16), (16, 1, 1), (1, 16, 1), (2, 8, 2),
    (5, 3, 3),
])
@pytest.mark.parametrize("batch", [15, 16, 17, 31, 32, 33, 64, 129])
def test_small_matrices_of_a_batch_are_multiplied_as_each_by_itself(
    rows: int, columns: int, inner: int, batch: int,
) -> None:
    torch.manual_seed(batch)
    a, b = torch.randn(batch, rows, inner), torch.randn(batch, inner, columns)
    a[3, 0, 0], b[5, 0, 0] = float("nan"), float("inf")
    shapes = [((batch, rows, columns), DType.FLOAT)]
    expected = torch.bmm(a.double(), b.double())
    for left, right in (
        (a, b), (a.mT.contiguous().mT, b), (a, b.mT.contiguous().mT), (torch.cat([a, a], 2)[:, :, :inner], b),
    ):
        (product,) = run_op("aten.bmm.default", {"self": left, "mat2": right}, {}, shapes, 2)
        torch.testing.assert_close(product.double(), expected, atol=1e-5, rtol=1e-5, equal_nan=True)
    (shared,) = run_op("aten.bmm.default", {"self": a[:1].expand_as(a), "mat2": b}, {}, shapes, 3)
    torch.testing.assert_close(
        shared.double(), torch.bmm(a[:1].expand_as(a).double(), b.double()), atol=1e-5, rtol=1e-5, equal_nan=True,
    )
    (one,) = run_op("aten.mm.default", {"self": a[-1], "mat2": b[-1]}, {}, [((rows, columns), DType.FLOAT)], 1)
    (product,) = run_op("aten.bmm.default", {"self": a, "mat2": b}, {}, shapes, 1)
    torch.testing.assert_close(product[-1], one, atol=1e-6, rtol=1e-6)
