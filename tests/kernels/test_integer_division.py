"""Division of integers against Python's whole numbers: every sign, what doubles do not hold, powers of two, by zero."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.kernels.elem_planner import run_op
from tests.kernels.test_narrow_integers import TYPES, all_or_extremes
from torchipu._kernels.abi import KernelTrap


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


WAYS: dict[str, tuple[str, dict[str, object], Callable[[int, int], int]]] = {
    "floor_divide": ("aten.floor_divide.default", {}, lambda a, b: a // b),
    "floor": ("aten.div.Tensor_mode", {"rounding_mode": "floor"}, lambda a, b: a // b),
    "trunc": ("aten.div.Tensor_mode", {"rounding_mode": "trunc"}, _truncated),
    "remainder": ("aten.remainder.Tensor", {}, lambda a, b: a % b),
    "fmod": ("aten.fmod.Tensor", {}, lambda a, b: int(math.copysign(1, a)) * (abs(a) % abs(b))),
}


def _wrapped(value: int, dtype: torch.dtype) -> int:
    bits, least = torch.iinfo(dtype).bits, torch.iinfo(dtype).min
    return (value - least) % (1 << bits) + least


def _ours(way: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Run the op alone: eager PyTorch may end the process where a quotient overflows."""
    target, attrs, _ = WAYS[way]
    (ours,), _ = run_op(target, a, b, results=[torch.empty_like(a)], **attrs)
    return ours


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_pair_of_values_is_as_in_python(way: str, dtype: torch.dtype) -> None:
    values = all_or_extremes(dtype)
    divisors = values[values != 0]
    a, b = (x.contiguous() for x in torch.broadcast_tensors(values[:, None], divisors))
    ours, exact = _ours(way, a, b).flatten().tolist(), WAYS[way][2]
    for mine, x, y in zip(ours, a.flatten().tolist(), b.flatten().tolist(), strict=True):
        assert mine == _wrapped(exact(x, y), dtype), (x, y)


@pytest.mark.parametrize("way", WAYS)
def test_numbers_about_the_limit_of_doubles_are_divided_exactly(way: str) -> None:
    near = [(1 << bit) + off for bit in (50, 51, 52, 53, 62) for off in (-3, -1, 0, 1)]
    a = torch.tensor([sign * value for value in (*near, (1 << 51) // 3 * 3, 10**15) for sign in (1, -1)])
    b = torch.tensor([1, -1, 2, 3, -7, 1 << 25, (1 << 26) + 1, -(1 << 50) + 1, (1 << 51) - 1, (1 << 52) + 5])
    a, b = (x.contiguous() for x in torch.broadcast_tensors(a[:, None], b))
    ours, exact = _ours(way, a, b).flatten().tolist(), WAYS[way][2]
    for mine, x, y in zip(ours, a.flatten().tolist(), b.flatten().tolist(), strict=True):
        assert mine == exact(x, y), (x, y)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("divisor", [1, 2, 8, 64, 3, 7])
def test_a_divisor_that_is_known_divides_as_any(dtype: torch.dtype, divisor: int) -> None:
    values = all_or_extremes(dtype)
    for target, way in (("aten.floor_divide.Scalar", "floor"), ("aten.remainder.Scalar", "remainder")):
        (ours,), _ = run_op(target, values, divisor, results=[values])
        assert ours.tolist() == [WAYS[way][2](x, divisor) for x in values.tolist()]


@pytest.mark.parametrize("way", WAYS)
def test_a_zero_among_the_divisors_is_refused(way: str) -> None:
    for place in (0, 5, 18):
        divisors = torch.ones(19, dtype=torch.int64)
        divisors[place] = 0
        with pytest.raises(KernelTrap):
            _ours(way, torch.arange(19), divisors)


def test_truth_values_are_compared_as_in_eager() -> None:
    a, b = torch.tensor([False, False, True, True] * 25), torch.tensor([False, True] * 50)
    for name in ("eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor", "maximum.default",
                 "minimum.default"):
        (ours,), (eager,) = run_op(f"aten.{name}", a, b)
        assert torch.equal(ours, eager)
