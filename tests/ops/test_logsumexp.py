"""``logsumexp`` against float64: over layouts of what is kept and reduced, lengths, infinities and threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.kernels.elem_planner import DTYPES, MiniPlanner
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import lookup

TARGET = "aten.logsumexp.default"
CASES: dict[str, tuple[Callable[[], torch.Tensor], list[int], str]] = {
    "short rows": (lambda: torch.randn(7, 5, 12), [2], "logsumexp_lanes"),
    "columns": (lambda: torch.randn(5, 9, 37), [1], "logsumexp_lanes"),
    "many columns": (lambda: torch.randn(100, 19), [0], "logsumexp_lanes"),
    "panels of columns": (lambda: torch.randn(101, 150), [0], "logsumexp_lanes"),
    "a batch of panels": (lambda: torch.randn(3, 1024, 70), [1], "logsumexp_lanes"),
    "few columns": (lambda: torch.randn(6, 20, 3), [1], "logsumexp_lanes"),
    "rows that are columns": (lambda: torch.randn(4, 30, 40).mT, [2], "logsumexp_lanes"),
    "a permuted batch": (lambda: torch.randn(6, 4, 11, 13).permute(1, 3, 0, 2), [2], "logsumexp_lanes"),
    "a single result": (lambda: torch.randn(29), [0], "logsumexp_lanes"),
    "one of each": (lambda: torch.randn(10, 1), [1], "logsumexp_lanes"),
    "repeated": (lambda: torch.randn(1, 6, 10).expand(4, 6, 10), [0], "logsumexp_lanes"),
    "long rows": (lambda: torch.randn(5, 5000), [1], "logsumexp_rows"),
    "few long columns": (lambda: torch.randn(40, 3), [0], "logsumexp_rows"),
    "long columns": (lambda: torch.randn(2049, 9), [0], "logsumexp_rows"),
    "dimensions that lie apart": (lambda: torch.randn(3, 4, 5), [0, 2], "logsumexp_rows"),
    "all": (lambda: torch.randn(3, 4, 5), [0, 1, 2], "logsumexp_rows"),
}


def logsumexp(held: torch.Tensor, dims: list[int], threads: int) -> tuple[torch.Tensor, list[str]]:
    plan = MiniPlanner(threads)
    given = Tensor("self", tuple(held.shape), DTYPES[held.dtype])
    result = Tensor("out", tuple(torch.logsumexp(held, dims).shape), DType.FLOAT)
    plan.values[given] = plan.hold(held)
    spec = lookup(TARGET)
    assert spec is not None
    assert spec.emit is not None
    spec.emit(Op(spec.kind, (given,), (result,), {"dim": dims, "keepdim": False}, TARGET, ("self",)), plan)
    return plan.fetch(plan.values[result]), plan.steps


@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_float64(name: str) -> None:
    torch.manual_seed(0)
    make, dims, kernel = CASES[name]
    held = make() * 30
    found, steps = logsumexp(held, dims, threads=1)
    assert steps[-1] == kernel
    torch.testing.assert_close(found.double(), torch.logsumexp(held.double(), dims), rtol=1e-6, atol=1e-6)
    assert torch.equal(logsumexp(held, dims, threads=3)[0], found)


@pytest.mark.parametrize("shape", [(4, 3), (4, 50), (50, 4), (20, 30)])
@pytest.mark.parametrize("dim", [0, 1])
def test_infinities_and_nans_come_out_as_eager_gives_them(shape: tuple[int, int], dim: int) -> None:
    torch.manual_seed(0)
    held = torch.randn(shape)
    held[0, 0], held[1, 1], held[2, :] = torch.inf, torch.nan, -torch.inf
    held[:, 2] = -torch.inf
    found, _ = logsumexp(held, [dim], threads=1)
    torch.testing.assert_close(found, torch.logsumexp(held, dim), equal_nan=True)


@pytest.mark.parametrize("columns", [8, 70, 200])
def test_what_comes_later_down_a_column_may_be_of_another_size(columns: int) -> None:
    """Sums so far are of the exponents less the largest so far: nothing, little, much, and what has no exponent."""
    draws = torch.Generator().manual_seed(columns)
    held = torch.randn(43, columns, generator=draws)
    inf, nan = torch.inf, torch.nan
    for rows, base in ((slice(0, 9), -inf), (slice(9, 17), -300.0), (slice(17, 30), 250.0), (slice(30, 43), -2.0)):
        held[rows] += base
    held[20, 1], held[40, 2], held[25:, 3], held[:, 4], held[5, 5] = inf, nan, -inf, -inf, nan
    held[2, 6], held[35, 6], held[31, 7] = inf, inf, 1e30
    for given in (held, held.flip(0)):
        found, steps = logsumexp(given, [0], threads=1)
        assert steps[-1] == "logsumexp_lanes"
        judge = torch.logsumexp(given.double(), 0)
        torch.testing.assert_close(found.double(), judge, equal_nan=True, rtol=1e-6, atol=1e-6)
        assert torch.equal(logsumexp(given, [0], threads=3)[0].nan_to_num(), found.nan_to_num())
