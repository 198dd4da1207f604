"""Shared lowerings: formulas against published measurements, and compute sets of the right sizes."""

import pytest

from tests.placed_graphs import ADD, SUM, op, tensor
from torchipu.device import codelets
from torchipu.device import compute_sets as lowering
from torchipu.ir.types import DType
from torchipu.target import lookup_target

MK2, BOW = lookup_target("mk2"), lookup_target("bow")


def test_float_add_takes_the_cycles_measured_on_bow():
    # tessellate-ipu: 1024 floats on one tile, 1860 cycles of which the measuring harness takes 127.
    assert ADD.cycles(BOW, {"elements": 1024, "vector_width": 2}) == 1860 - 127


# Third-party half reductions on C600 silicon: results x partials, cycles (ipu-stack kernel measurements).
@pytest.mark.parametrize(("results", "partials", "measured"), [(1472, 4, 3444), (2208, 28, 18222), (576, 15, 3090)])
def test_reductions_are_within_a_tenth_of_silicon(results, partials, measured):
    work = {"elements": results, "partials": partials, "vector_width": 4}
    assert SUM.cycles(BOW, work) == pytest.approx(measured, rel=0.1)


def test_few_results_are_reduced_by_all_six_workers():
    row = {"elements": 1, "partials": 1200, "vector_width": 2}
    assert SUM.cycles(MK2, row) < 33 + 6 * (24 + 17 + 600)


def test_busiest_elements_gives_each_tile_128_bytes():
    assert codelets.busiest_elements(MK2, 64, 2, 4) == 32
    assert codelets.busiest_elements(MK2, 1472 * 100, 4, 2) == 100
    assert codelets.busiest_elements(MK2, 10, 4, 2) == 10


def test_elementwise_op_gathers_only_broadcast_operands():
    wide, bias, out = tensor("a", 1472, 64), tensor("b", 64), tensor("c", 1472, 64)
    same = lowering.linear_vertices(ADD)(op("add", (wide, wide), out), MK2)
    broadcast = lowering.linear_vertices(ADD)(op("add", (wide, bias), out), MK2)
    assert [v.gathered_bytes for v in same] == [0]
    assert [v.gathered_bytes for v in broadcast] == [64 * 4]


def test_transposing_halves_costs_more_than_moving_them():
    moved = lowering.copy_set(MK2, 1_000_000, DType.HALF)
    transposed = lowering.copy_set(MK2, 1_000_000, DType.HALF, run_elements=1)
    cycles = [one.codelet.cycles(MK2, one.work(680)) for one in (moved, transposed)]
    assert cycles[1] > 5 * 680 * 2 > cycles[0]


def test_empty_results_lower_to_nothing():
    empty = tensor("e", 0, 4)
    assert lowering.linear_vertices(ADD)(op("add", (empty, empty), tensor("o", 0, 4)), MK2) == ()
    assert lowering.fill_vertices(None)(op("add", (), tensor("o", 0)), MK2) == ()
