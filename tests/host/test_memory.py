"""What the memory of a plan tells of views while the plan is made."""

from __future__ import annotations

import pytest

from torchipu.host.memory import Memory
from torchipu.host.storage import Place
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor

TWELVE = 12
"""Elements of the allocation that is shown."""


@pytest.mark.parametrize(("offset", "shape", "strides", "is_within"), [
    (0, (3, 4), (4, 1), True),
    (0, (4, 3), (1, 4), True),
    (1, (3, 4), (4, 1), False),  # its last element
    (0, (2, 4), (9, 1), False),
    (0, (2, 3), (9, 1), True),
    (11, (12,), (-1,), True),
    (10, (12,), (-1,), False),  # its last element, which lies first
    (12, (12,), (-1,), False),
    (3, (3, 4), (4, -1), True),
    (2, (3, 4), (4, -1), False),
    (12, (), (), False),
    (11, (), (), True),
    (11, (5, 2), (0, -11), True),
    (99, (3, 0), (4, 1), True),  # of nothing
])
@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.HALF])
@pytest.mark.parametrize("place", [Place.ARENA, Place.CONSTANT])
def test_a_view_is_within_its_allocation_where_all_its_elements_are(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...], is_within: bool, dtype: DType, place: Place,
) -> None:
    memory = Memory()
    held = memory.storage((TWELVE,), dtype, place)
    assert memory.is_within(HostTensor(held.buffer, offset, shape, strides, dtype)) is is_within


def test_what_the_user_hands_over_lies_as_the_user_has_it() -> None:
    memory = Memory()
    held = memory.storage((TWELVE,), DType.FLOAT, Place.INPUT)
    assert memory.is_within(HostTensor(held.buffer, 0, (TWELVE,), (3,), DType.FLOAT))


@pytest.mark.parametrize(("offset", "shape", "strides", "dtype", "is_whole"), [
    (0, (3, 4), (4, 1), DType.FLOAT, True), (0, (12,), (1,), DType.FLOAT, True),
    (0, (3, 4), (1, 3), DType.FLOAT, False),
    (0, (11,), (1,), DType.FLOAT, False), (1, (12,), (1,), DType.FLOAT, False), (0, (12,), (1,), DType.HALF, False),
])
def test_a_view_is_all_of_its_allocation_where_it_begins_with_it_and_is_as_long(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, is_whole: bool,
) -> None:
    memory = Memory()
    held = memory.storage((TWELVE,), DType.FLOAT, Place.ARENA)
    assert memory.is_all_of(HostTensor(held.buffer, offset, shape, strides, dtype)) is is_whole
