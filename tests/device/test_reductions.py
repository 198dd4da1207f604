"""Reductions along dimensions: what a tile holds, and the levels in which partials are joined."""

from __future__ import annotations

from math import prod

import pytest

from torchipu.device.codelets import reduction_codelet
from torchipu.device.reductions import box_of, reduced_along
from torchipu.ir.types import DType
from torchipu.optable.codelet import Vertices
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")
SUM = reduction_codelet("test::Reduce<lengthwise>")


def sets_of(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[Vertices, ...]:
    return reduced_along(MK2, SUM, shape, dims, DType.HALF, DType.FLOAT, None)


def test_a_tile_holds_inner_dimensions_whole_and_a_part_of_one():
    box = box_of(MK2, (4, 3136, 8), (1,), 2)
    assert box.order == ((4, False), (349, True), (8, False))  # 9 of 3,136 rows of 8: 4 * 349 boxes on 1,472 tiles
    assert (box.fan, box.stretch, box.together, box.has_columns) == (9, 3136, 8, True)


def test_neighbouring_dimensions_of_a_kind_are_one():
    assert box_of(MK2, (8, 1, 64, 32), (2, 3), 4) == box_of(MK2, (8, 2048), (1,), 4)
    assert not box_of(MK2, (8, 64, 32), (1, 2), 4).has_columns


def test_few_sources_are_joined_at_once_and_many_in_two_levels_by_eight_results():
    few = sets_of((16, 128, 8, 4), (1, 3))
    many = sets_of((4, 3136, 8), (1,))
    assert [one.work(1)["partials"] for one in few] == [2 * 4, 64]
    assert [one.work(1)["partials"] for one in many] == [9, 19, 19]  # 349 sources, whose root is 18.7
    assert [one.gathered_bytes for one in many] == [0, 8 * 19 * 4, 8 * 19 * 4]
    assert all(one.grain == 8 for one in (few[-1], *many[1:]))


@pytest.mark.parametrize(("shape", "dims"), [((4096, 100), (1,)), ((1472, 8, 50), (2,)), ((3, 1), (1,))])
def test_rows_that_lie_on_a_tile_stay_there(shape: tuple[int, ...], dims: tuple[int, ...]):
    (only,) = sets_of(shape, dims)
    assert only.gathered_bytes == 0
    assert only.elements == prod(shape) // shape[-1]


def test_what_no_tile_has_two_elements_of_is_fetched_first():
    (only,) = sets_of((64, 4096), (0,))
    assert only.work(1)["partials"] == 64
    assert only.gathered_bytes == 8 * 64 * 2


@pytest.mark.parametrize(
    ("shape", "dims"), [((1_000_000,), (0,)), ((7, 13, 5, 3), (0, 2)), ((600, 3, 50), (1,)), ((), ())],
)
def test_each_element_goes_into_a_result(shape: tuple[int, ...], dims: tuple[int, ...]):
    sets = sets_of(shape, dims)
    length = prod(shape[dim] for dim in dims)
    assert prod(one.work(1)["partials"] for one in sets) >= length
    assert sets[-1].elements == prod(shape) // length
