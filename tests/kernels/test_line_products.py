"""Products of single rows, columns and summands against float64, over sizes, layouts and threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.kernels.elem_planner import DTYPES, MiniPlanner
from tests.kernels.rounding_of_sums import UNIT
from torchipu.host.emit.line_products import MOST_ELEMENTS, MOST_SUMMANDS, are_lines, emit_line_products
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType

SIZES = [  # rows, columns, inner
    (1, 1, 1), (1, 1, 5), (1, 1, 100), (1, 7, 1), (9, 1, 1), (5, 40, 1), (33, 3, 1), (1, 3, 2), (1, 16, 33), (1, 17, 8),
    (1, 31, 1), (1, 48, 65), (1, 64, 3), (1, 65, 19), (1, 130, 100), (8, 1, 7), (12, 1, 16), (37, 1, 50), (13, 1, 129),
]
Layout = Callable[[int, int], torch.Tensor]
LAYOUTS: dict[str, Layout] = {
    "rows": lambda rows, columns: torch.randn(2, 3, 4, rows, columns),
    "columns": lambda rows, columns: torch.randn(2, 3, 4, columns, rows).mT,
    "repeated": lambda rows, columns: torch.randn(2, 1, 4, rows, columns).expand(2, 3, 4, rows, columns),
    "permuted": lambda rows, columns: torch.randn(4, 2, rows, 3, columns).permute(1, 3, 0, 2, 4),
    "windows": lambda rows, columns: torch.randn(2, 3, 3 + columns, rows).unfold(2, columns, 1),
    "windows of windows": lambda rows, columns: (
        torch.randn(2, 3, 3 + rows + columns).unfold(2, rows + columns, 1).unfold(3, columns, 1)[:, :, :4, :rows]
    ),
    "apart": lambda rows, columns: torch.randn(2, 3, 4, 2 * rows, 2 * columns)[..., ::2, 1::2],
    "one batch": lambda rows, columns: torch.randn(24, rows, columns),
    "one batch of columns": lambda rows, columns: torch.randn(24, columns, rows).mT,
}


def product(left: torch.Tensor, right: torch.Tensor, threads: int) -> tuple[torch.Tensor, list[str]]:
    plan = MiniPlanner(threads)
    operands = []
    for name, held in (("left", left), ("right", right)):
        tensor = Tensor(name, tuple(held.shape), DTYPES[held.dtype])
        plan.values[tensor] = plan.hold(held)
        operands.append(tensor)
    out = plan.output(Tensor("out", (24, left.shape[-2], right.shape[-1]), DType.FLOAT))
    emit_line_products(plan, out, *operands)
    return plan.fetch(out), plan.steps


@pytest.mark.parametrize("of_right", LAYOUTS)
@pytest.mark.parametrize("of_left", ["rows", "columns", "permuted", "windows", "apart", "one batch"])
def test_products_are_those_of_float64(of_left: str, of_right: str) -> None:
    torch.manual_seed(0)
    for rows, columns, inner in SIZES:
        left, right = LAYOUTS[of_left](rows, inner), LAYOUTS[of_right](inner, columns)
        whole = [held.double().reshape(24, *held.shape[-2:]) for held in (left, right)]
        found, steps = product(left, right, threads=1)
        assert steps[-1] == "line_products"
        # Each summand is rounded as it is multiplied, and at most once for every summand that is added to it.
        bound = (inner + 1) * UNIT * torch.bmm(whole[0].abs(), whole[1].abs())
        assert ((found.double() - torch.bmm(*whole)).abs() <= bound).all(), (rows, columns, inner)
        assert torch.equal(product(left, right, threads=3)[0], found)


@pytest.mark.parametrize("of_right", ["rows", "columns", "repeated", "permuted", "windows", "one batch"])
def test_operands_are_read_where_they_lie(of_right: str) -> None:
    left, right = LAYOUTS["repeated"](1, 20), LAYOUTS[of_right](20, 30)
    assert product(left, right, threads=1)[1] == ["line_products"]


def test_operands_that_no_line_of_is_dense_are_copied() -> None:
    assert len(product(LAYOUTS["rows"](1, 20), LAYOUTS["apart"](20, 30), threads=1)[1]) > 1


@pytest.mark.parametrize(("sizes", "expected"), [
    ((8, 1, 5, 6), True), ((8, 5, 1, 6), True), ((8, 5, 6, 1), True), ((8, 2, 5, 6), False), ((7, 1, 5, 6), False),
    ((8, 0, 5, 1), False), ((8, 1, 1, MOST_SUMMANDS), True), ((8, 1, 1, MOST_SUMMANDS + 1), False),
    ((8, 1, MOST_ELEMENTS // 16, 16), True), ((8, 1, MOST_ELEMENTS // 16, 17), False),
])
def test_which_products_are_of_lines(sizes: tuple[int, int, int, int], expected: bool) -> None:
    assert are_lines(*sizes) is expected
