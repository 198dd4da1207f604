"""In which orders of their dimensions values may lie, each case beside the strides that torch gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchipu.host.orders import Orders
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor

LAST = (0, 2, 3, 1)
"""Channels last."""


def strides_of(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides that torch gives a tensor in memory of this order."""
    made = torch.empty([shape[dim] for dim in order])
    return made.permute([order.index(dim) for dim in range(len(shape))]).stride()


def held(shape: tuple[int, ...], order: tuple[int, ...], *, apart: int = 1) -> HostTensor:
    return HostTensor(0, 0, shape, tuple(apart * stride for stride in strides_of(shape, order)), DType.FLOAT)


def orders(
    tensor: Tensor, *, expected: tuple[int, ...] | None = None, is_kept: bool = False, is_saved: bool = False,
    are_kept: bool = True,
) -> Orders:
    uses: Any = SimpleNamespace(kept={tensor} if is_kept else set())
    strides = {} if expected is None else {tensor: strides_of(tensor.shape, expected)}
    return Orders(uses, strides, {tensor} if is_saved else set(), are_kept=are_kept)


IMAGES = Tensor("images", (2, 3, 4, 5), DType.FLOAT)
CHANNELS = Tensor("channels", (2, 3, 1, 1), DType.FLOAT)
ROWS = (0, 1, 2, 3)


@pytest.mark.parametrize(("facts", "may"), [
    ({}, True), ({"is_kept": True}, False), ({"is_kept": True, "is_saved": True}, True), ({"is_saved": True}, True),
    ({"are_kept": False}, False), ({"are_kept": False, "is_kept": True, "is_saved": True}, False),
])
def test_a_value_may_lie_anyhow_if_nobody_is_given_it_or_whoever_is_does_not_mind(
    facts: dict[str, bool], may: bool,
) -> None:
    assert orders(IMAGES, **facts).may_lie_anyhow(IMAGES) is may


@pytest.mark.parametrize("order", [ROWS, LAST, (3, 2, 1, 0), (1, 0, 3, 2)])
def test_strides_of_an_order_are_those_that_torch_gives(order: tuple[int, ...]) -> None:
    assert orders(IMAGES).strides_in(IMAGES, order) == strides_of(IMAGES.shape, order)
    expected = orders(IMAGES, expected=LAST)
    assert expected.strides_in(IMAGES, order) == strides_of(IMAGES.shape, LAST)
    other = Tensor("other", (2, 3, 4, 5), DType.FLOAT)
    assert expected.strides_in(other, order) == strides_of(other.shape, order)


@pytest.mark.parametrize(("facts", "lies", "found"), [
    ({}, LAST, LAST),
    ({}, (3, 0, 1, 2), (3, 0, 1, 2)),
    ({}, ROWS, None),  # it is row-major then
    ({"is_kept": True}, LAST, None),  # the caller expects it row-major
    ({"is_kept": True, "is_saved": True}, LAST, LAST),
    ({"are_kept": False}, LAST, None),
    ({"is_kept": True, "expected": LAST}, LAST, LAST),
    ({"is_kept": True, "expected": LAST, "are_kept": False}, LAST, LAST),
    ({"is_kept": True, "expected": LAST}, ROWS, None),
    ({"is_kept": True, "expected": (3, 0, 1, 2)}, LAST, None),
])
def test_a_result_lies_as_its_operand_does_where_it_may(
    facts: dict[str, Any], lies: tuple[int, ...], found: tuple[int, ...] | None,
) -> None:
    assert orders(IMAGES, **facts).like(held(IMAGES.shape, lies), IMAGES) == found


def test_an_operand_with_gaps_is_nothing_to_be_like() -> None:
    assert orders(IMAGES).like(held(IMAGES.shape, LAST, apart=2), IMAGES) is None


def test_an_operand_of_fewer_dimensions_is_nothing_to_be_like() -> None:
    rows = held((6, 20), (1, 0))
    assert orders(IMAGES, is_kept=True, expected=LAST).like(rows, IMAGES) is None


def test_an_order_that_is_expected_is_told_where_it_is_row_major_too() -> None:
    """Of dimensions of one element only the strides differ, and the caller looks at these."""
    expected = orders(CHANNELS, is_kept=True, expected=LAST)
    lying = held(CHANNELS.shape, ROWS)
    assert lying.is_contiguous
    order = expected.like(lying, CHANNELS)
    assert order is not None
    assert expected.strides_in(CHANNELS, order) == strides_of(CHANNELS.shape, LAST)
    assert orders(CHANNELS).like(lying, CHANNELS) is None
