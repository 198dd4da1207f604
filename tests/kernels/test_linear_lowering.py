"""Device costs of the linear families."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops import attention, conv, pool  # noqa: F401
from torchipu.ops.matmul import AMP, amp_cycles, plan_matmul
from torchipu.ops.spec import lookup
from torchipu.target import lookup_target


@pytest.mark.parametrize(("positions", "measured"), [(16, 402), (144, 908), (272, 1421), (784, 3464), (2048, 8525)])
def test_amp_formula_is_within_two_percent_of_silicon(positions: int, measured: int) -> None:
    work = {"positions": positions, "inputs": 16, "outputs": 16, "is_half": 1, "output_group": 16}
    cycles = amp_cycles(SimpleNamespace(num_workers=6), work)  # type: ignore[arg-type]
    assert cycles == pytest.approx(measured, rel=0.02)


def test_a_plan_uses_no_more_tiles_than_there_are() -> None:
    target = lookup_target("mk2")
    for groups, rows, inner, columns in [
        (1, 1, 1, 1),
        (1, 4096, 4096, 4096),
        (96, 512, 64, 512),
        (3000, 7, 9, 11),
        (1, 1, 50000, 10),
    ]:
        plan = plan_matmul(target, groups, rows, inner, columns, True, 8)
        assert plan.row_split * plan.column_split * plan.input_split * min(groups, target.num_tiles) <= target.num_tiles
        assert plan.positions * plan.row_split >= rows
        assert plan.inputs * plan.input_split >= inner
        assert plan.outputs * plan.column_split >= columns


def test_a_long_sum_with_few_results_is_split_and_its_partials_are_reduced() -> None:
    left, right, out = (
        Tensor("a", (8, 50000), DType.HALF),
        Tensor("b", (50000, 16), DType.HALF),
        Tensor("c", (8, 16), DType.HALF),
    )
    op = Op("mm", (left, right), (out,), {}, "aten.mm.default", ("self", "mat2"))
    spec = lookup("aten.mm.default")
    assert spec is not None
    sets = spec.lower(op, lookup_target("mk2"))
    assert [s.codelet.name for s in sets] == [AMP.name, "popops::ReducePartialsEqualSize"]
    assert all(s.codelet.cycles(lookup_target("mk2"), s.work(1)) > 0 for s in sets)
