"""Vertices of sorting and of the k largest, against the ops themselves."""

from __future__ import annotations

import pytest
import torch

from tests.device.tilings.calls import judge_call
from tests.ops.cases.drawing import Call


@pytest.mark.parametrize("tiles", [1472, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize(("shape", "dim"), [((500,), 0), ((2, 77, 3), 1), ((5, 2), 0)])
@pytest.mark.parametrize("descending", [False, True])
def test_sort(shape: tuple[int, ...], dim: int, descending: bool, dtype: torch.dtype, tiles: int) -> None:
    values = torch.randint(-50, 50, shape).to(dtype)  # many are equal
    call = Call("aten.sort.stable", (values,), {"stable": True, "dim": dim, "descending": descending})
    assert judge_call(call, tiles) == "tiled"


@pytest.mark.parametrize("descending", [False, True])
def test_numbers_that_are_none_are_the_largest(descending: bool) -> None:
    values = torch.randn(3, 333)
    values[1, ::7], values[2, 5], values[2, 9] = torch.nan, torch.inf, -torch.inf
    call = Call("aten.sort.stable", (values,), {"stable": True, "dim": 1, "descending": descending})
    assert judge_call(call, 1472) == "tiled"


@pytest.mark.parametrize("tiles", [1472, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("shape", "dim", "k"), [
    ((2000,), 0, 7), ((2, 70, 3), 1, 5), ((64, 8), -1, 2), ((3, 900), 1, 1), ((5, 6), 1, 6), ((2, 90), 1, 60),
])
@pytest.mark.parametrize("largest", [False, True])
def test_topk(shape: tuple[int, ...], dim: int, k: int, largest: bool, dtype: torch.dtype, tiles: int) -> None:
    values = torch.randperm(torch.Size(shape).numel())  # no two are equal: nobody says which of them would be taken
    values = values.to(torch.int16).view(dtype) if dtype is torch.float16 else values.to(dtype)
    values = values.reshape(shape)
    call = Call("aten.topk.default", (values, k, dim, largest, True), {})
    assert judge_call(call, tiles) == "tiled"
