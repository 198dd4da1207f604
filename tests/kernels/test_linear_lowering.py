"""Device costs of the linear families."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchipu.device.matmul_plan import plan_matmul
from torchipu.device.matrix_unit import AMP, amp_cycles
from torchipu.host.emit import conv  # noqa: F401
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import lookup
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
        (1, 8192, 8192, 8192),
        (1, 4096, 4096, 4096),
        (96, 512, 64, 512),
        (3000, 7, 9, 11),
        (1, 1, 50000, 10),
    ]:
        plan = plan_matmul(target, groups, rows, inner, columns, True, 8)
        tiles = plan.row_split * plan.column_split * plan.input_split * min(groups, target.num_tiles)
        assert tiles <= target.num_tiles
        macs_of_a_tile = plan.positions * plan.inputs * plan.outputs * plan.calls * plan.repeats
        assert tiles * macs_of_a_tile >= groups * rows * inner * columns


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


@pytest.mark.parametrize("sizes", [
    (1, 512, 2048, 2048), (1, 4096, 64, 4096), (3000, 64, 64, 64), (4, 1000, 3000, 1000),
])
def test_less_memory_makes_a_plan_smaller_and_never_faster(sizes: tuple[int, int, int, int]) -> None:
    target = lookup_target("mk2")
    plans = [plan_matmul(target, *sizes, True, 8, part) for part in (1.0, 0.6, 0.2, 0.1, 0.05, 0.02)]
    assert plan_matmul(target, *sizes, True, 8) == plans[1]
    for part, more, less in zip((0.6, 0.2, 0.1, 0.05, 0.02), plans, plans[1:], strict=False):
        assert less.cycles >= more.cycles
        gathered = (less.positions + less.outputs) * less.inputs * 2 * less.calls
        assert less.excess_bytes or gathered <= part * target.tile_memory_bytes
    assert plans[-1].repeats > plans[0].repeats


def test_a_plan_in_parts_is_a_loop_whose_memory_is_that_of_one_part() -> None:
    left, right = Tensor("a", (512, 2048), DType.FLOAT), Tensor("b", (2048, 2048), DType.FLOAT)
    out = Tensor("c", (512, 2048), DType.FLOAT)
    spec = lookup("aten.mm.default")
    assert spec is not None
    found = {}
    for part in (0.6, 0.1):
        op = Op("mm", (left, right), (out,), {"available_memory": part}, "aten.mm.default", ("self", "mat2"))
        found[part] = spec.lower(op, lookup_target("mk2"))[0]
    assert found[0.1].repeats > found[0.6].repeats == 1
    assert found[0.1].temporary_bytes <= 0.1 * lookup_target("mk2").tile_memory_bytes < found[0.6].temporary_bytes
