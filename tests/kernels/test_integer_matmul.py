"""Products of integer matrices, on guarded buffers and several threads, against eager: sums wrap as its do."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import run_op

TYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
# Fewer and more rows than a tile has, and columns that are no, one or more vectors, with a rest and without.
SIZES = [(1, 1, 1), (5, 7, 3), (4, 16, 17), (9, 33, 40), (2, 130, 33), (13, 20, 64), (3, 64, 1), (6, 0, 4)]


def same_bits(target: str, *args: object, **kwargs: object) -> None:
    for threads in (1, 2, 4):
        (ours,), (eager,) = run_op(target, *args, threads=threads, **kwargs)
        assert ours.dtype == eager.dtype
        assert torch.equal(ours, eager)


def whole(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min // 2, limits.max // 2 + 1, shape).to(dtype)


def across(x: torch.Tensor) -> torch.Tensor:
    """The same values with columns that lie dense."""
    return x.mT.contiguous().mT


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_products_wrap_whatever_lies_dense(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(sum(size))
    rows, inner, columns = size
    a, b, c = whole((rows, inner), dtype), whole((inner, columns), dtype), whole((rows, columns), dtype)
    for left in (a, across(a)):
        for right in (b, across(b)):
            same_bits("aten.mm.default", left, right)
            same_bits("aten.addmm.default", c, left, right, alpha=3, beta=5)
        same_bits("aten.mv.default", left, b[:, 0].contiguous())
        same_bits("aten.addmv.default", c[:, 0].contiguous(), left, b[:, 0].contiguous(), beta=2)


@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
def test_batches_of_products_wrap(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = whole((3, 6, 37), dtype), whole((3, 37, 20), dtype)
    for left in (a, across(a)):
        for right in (b, across(b)):
            same_bits("aten.bmm.default", left, right)
            same_bits("aten.baddbmm.default", whole((3, 6, 20), dtype), left, right, alpha=3)
        same_bits("aten.bmm.default", left, b[:, :, :1].contiguous())
