"""Which operands of products are packed, and where: rules by what they look at, each on both sides of its limit."""

from __future__ import annotations

import pytest

from torchipu._kernels.table.gemm import PANEL
from torchipu._kernels.table.matmul import Packing
from torchipu.host.emit import packing
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor

DENSE, ACROSS = (1000, 1), (1, 1000)
"""Strides of an operand whose rows lie dense, and of one whose columns do."""
IN_ONE_SET = (1024, 1)
LIES, AHEAD, IN_ITEM = Packing.AS_IT_LIES, Packing.AHEAD, Packing.IN_ITEM
Strides = tuple[int, int]


@pytest.fixture(autouse=True)
def _vectors_of_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "vector_lanes", lambda: 16)


@pytest.mark.parametrize(("left", "right", "sizes", "where"), [
    (DENSE, DENSE, (512, 1000, 1000), LIES), (ACROSS, DENSE, (512, 1000, 1000), AHEAD),
    # The operand with fewer elements is the one that is written and read again; of as many it is the right one's.
    (ACROSS, ACROSS, (2000, 1000, 1000), IN_ITEM), (ACROSS, ACROSS, (1000, 1000, 1000), IN_ITEM),
    (ACROSS, ACROSS, (999, 1000, 1000), AHEAD),
    # Few rows, summands or columns do not pay.
    (ACROSS, ACROSS, (28, 1000, 1000), AHEAD), (ACROSS, ACROSS, (27, 1000, 1000), LIES),
    (ACROSS, DENSE, (512, 1000, 64), AHEAD), (ACROSS, DENSE, (512, 63, 1000), LIES),
    # Few summands: items pack small operands.
    (ACROSS, DENSE, (512, 128, 63), IN_ITEM), (ACROSS, DENSE, (512, 127, 63), LIES),
    (DENSE, DENSE, (512, 128, 63), LIES),
    # Rows that fall out of the first cache are packed for few columns too, but for one panel.
    (IN_ONE_SET, ACROSS, (512, 63, 1024), IN_ITEM), (IN_ONE_SET, ACROSS, (512, PANEL, 1024), LIES),
    (IN_ONE_SET, ACROSS, (128, 63, 1024), LIES), (IN_ONE_SET, DENSE, (512, 1000, 1024), AHEAD),
    # Few dense rows, or such as lie across, are packed ahead where tiles then fetch row-major panels.
    (DENSE, DENSE, (384, 256, 1000), AHEAD), (DENSE, DENSE, (385, 256, 1000), LIES),
    (DENSE, DENSE, (384, 255, 1000), LIES), (DENSE, ACROSS, (384, 256, 1000), LIES),
    # Many summands.
    (DENSE, ACROSS, (512, 1000, 4096), LIES), (DENSE, ACROSS, (1200, 1000, 4097), IN_ITEM),
    (DENSE, ACROSS, (512, 1000, 4097), AHEAD),
])
def test_where_rows_come_from(left: Strides, right: Strides, sizes: tuple[int, int, int], where: Packing) -> None:
    assert packing.rows_packing(left, right, *sizes, is_ready=False, is_alone=True) is where


@pytest.mark.parametrize(("sizes", "where"), [
    ((512, 1000, 257), IN_ITEM), ((512, 1000, 256), LIES), ((384, 256, 1000), LIES), ((999, 1000, 5000), IN_ITEM),
])
def test_rows_are_packed_by_items_where_panels_are_ready(sizes: tuple[int, int, int], where: Packing) -> None:
    assert packing.rows_packing(DENSE, DENSE, *sizes, is_ready=True, is_alone=True) is where


def test_a_product_of_a_batch_fetches_no_row_major_panels() -> None:
    assert packing.rows_packing(DENSE, DENSE, 384, 256, 1000, is_ready=False, is_alone=False) is LIES


def test_short_vectors_keep_rows_that_fall_into_one_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "vector_lanes", lambda: 8)
    assert packing.rows_packing(IN_ONE_SET, ACROSS, 512, 63, 1024, is_ready=False, is_alone=True) is LIES


@pytest.mark.parametrize(("strides", "sizes", "pays"), [
    (DENSE, (57, 33, 3000), True), (DENSE, (56, 33, 3000), False), (DENSE, (57, 32, 3000), False),
    (ACROSS, (2, 33, 1000), True),  # columns are dense: panels cost what turning them does
    (IN_ONE_SET, (29, 90, 1000), True), (IN_ONE_SET, (28, 90, 1000), False), (IN_ONE_SET, (29, 90, 63), False),
    (DENSE, (29, 90, 1000), False),
    (DENSE, (256, 64, 1000), False), (DENSE, (256, 66, 1000), True), (DENSE, (257, 64, 1000), True),  # 256 KiB
    (DENSE, (28, 96, 5000), False), (DENSE, (300, 96, 7), False), (DENSE, (300, 96, 8), True),
])
def test_when_panels_pay(strides: Strides, sizes: tuple[int, int, int], pays: bool) -> None:
    assert packing.pays_for_panels(strides, *sizes) is pays


@pytest.mark.parametrize(("left", "right", "sizes", "pays"), [
    (DENSE, ACROSS, (28, 192, 128), True), (DENSE, ACROSS, (27, 192, 128), False),
    (DENSE, ACROSS, (28, 191, 128), False), (DENSE, ACROSS, (28, 192, 129), False),
    (ACROSS, ACROSS, (28, 192, 128), False), (DENSE, DENSE, (28, 192, 128), False),
    (DENSE, (1, 1), (28, 192, 128), False),
])
def test_when_items_of_a_batch_pack_both(
    left: Strides, right: Strides, sizes: tuple[int, int, int], pays: bool,
) -> None:
    assert packing.pays_to_pack_both(left, right, *sizes) is pays


@pytest.mark.parametrize(("shape", "strides", "apart"), [
    ((3, 5), (5, 1), (5, 1)), ((3, 5), (1, 3), (1, 3)), ((3, 5), (10, 2), None), ((1, 5), (99, 1), (5, 1)),
    ((3, 1), (7, 99), (7, 1)), ((1, 5), (99, 2), (1, 2)), ((2, 3, 5), (15, 5, 1), (5, 1)),
])
def test_a_dimension_of_one_element_has_no_neighbours(
    shape: tuple[int, ...], strides: tuple[int, ...], apart: Strides | None,
) -> None:
    assert packing.rows_apart(HostTensor(0, 0, shape, strides, DType.FLOAT)) == apart
