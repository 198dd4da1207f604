"""Floats become halves and bfloats, and these floats, bit for bit as in eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from torchipu.host.emit.copy import emit_copy

EVERY = torch.arange(-(2**15), 2**15, dtype=torch.int32).short()
NARROW = [torch.float16, torch.bfloat16]


def _converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    planner = MiniPlanner(threads=2)
    given, made = planner.hold(x), planner.hold(torch.empty(x.shape, dtype=dtype))
    emit_copy(planner, made, given)
    assert planner.steps == (["convert"] if x.numel() else [])
    return planner.fetch(made)


def _assert_same_bits(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    bits = torch.int16 if mine.itemsize == 2 else torch.int32
    assert mine.dtype is theirs.dtype
    assert torch.equal(mine.isnan(), theirs.isnan())
    assert torch.equal(mine.view(bits)[~mine.isnan()], theirs.view(bits)[~mine.isnan()])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_each_number_of_16_bits_becomes_its_float(dtype: torch.dtype) -> None:
    x = EVERY.view(dtype)
    _assert_same_bits(_converted(x, torch.float32), x.float())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_floats_become_the_nearest_ones(dtype: torch.dtype) -> None:
    bits = torch.arange(0, 1 << 32, 65521 * 8 + 1, dtype=torch.int64).to(torch.int32)
    exact = EVERY.view(dtype).float().view(torch.int32)
    low = 13 if dtype is torch.float16 else 16
    ties = exact | 1 << (low - 1)
    x = torch.cat([bits, exact, ties, ties - 1, ties + 1]).view(torch.float32)
    _assert_same_bits(_converted(x, dtype), x.to(dtype))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 15, 16, 17, 31, 33, 4095, 4097, 9001])
def test_any_number_of_elements_is_converted(count: int, dtype: torch.dtype) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count))
    _assert_same_bits(_converted(x, dtype), x.to(dtype))
    _assert_same_bits(_converted(x.to(dtype), torch.float32), x.to(dtype).float())
