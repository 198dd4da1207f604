"""Operands and results whose elements take turns in memory, as parts of complex numbers do; against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import Ref, run_chain, run_op
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor, take_turns

LENGTHS = [1, 2, 7, 8, 15, 16, 17, 33, 1000, 5000]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("batch", [(), (3,), (1,)], ids=str)
def test_products_of_what_takes_turns(length: int, batch: tuple[int, ...]) -> None:
    """Each part of one operand meets each of the other, which is broadcast to it."""
    x, y = drawn(*batch, length, 2), drawn(length, 2)
    calls = [
        ("aten.mul.Tensor", (x[..., 0], y[..., 0]), {}), ("aten.mul.Tensor", (x[..., 1], y[..., 1]), {}),
        ("aten.sub.Tensor", (Ref(0), Ref(1)), {}), ("aten.mul.Tensor", (x[..., 0], y[..., 1]), {}),
        ("aten.mul.Tensor", (x[..., 1], y[..., 0]), {}), ("aten.add.Tensor", (Ref(3), Ref(4)), {}),
    ]
    for threads in (1, 2):
        ours, eager, _ = run_chain(calls, [2, 5], threads)
        for mine, its in zip(ours, eager, strict=True):
            assert torch.equal(mine, its)


@pytest.mark.parametrize("length", LENGTHS)
def test_complex_results_take_turns(length: int) -> None:
    """Results that a compiled graph stacks; parts that are one number for all elements are among them."""
    x, y = drawn(3, length), drawn(length)
    halves = drawn(4, 2 * length)

    def run(x: torch.Tensor, y: torch.Tensor, halves: torch.Tensor) -> list[torch.Tensor]:
        first, second = halves[..., ::2], halves[..., 1::2]
        return [
            torch.stack((x * y, x - y), -1), torch.stack((x.abs(), x.abs()), -1),
            torch.view_as_real(torch.complex(torch.ones_like(x), -x)),
            torch.stack((first * 2 - second, first + second * 2), -1).flatten(-2),
            torch.view_as_real(torch.complex(x, x * y) * torch.complex(y, y)),
        ]

    expected = run(x, y, halves)
    torch._dynamo.reset()
    for mine, its in zip(torch.compile(run, backend="ipu")(x, y, halves), expected, strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_columns_become_rows_of_two(length: int, dtype: torch.dtype) -> None:
    x, y = ((drawn(3, length + more) * 9)[:, more:].contiguous().to(dtype) for more in (0, 1))
    (ours,), (eager,) = run_op("aten.stack.default", [x, y], -1)
    assert torch.equal(ours, eager)


def test_what_takes_turns() -> None:
    """Floats of one buffer that lie two apart, one step from each other."""
    one = HostTensor(0, 4, (3, 5), (10, 2), DType.FLOAT)
    assert take_turns(one, HostTensor(0, 5, (3, 5), (10, 2), DType.FLOAT))
    assert take_turns(one, HostTensor(0, 3, (3, 5), (10, 2), DType.FLOAT))
    for other in (
        HostTensor(1, 5, (3, 5), (10, 2), DType.FLOAT), HostTensor(0, 6, (3, 5), (10, 2), DType.FLOAT),
        HostTensor(0, 5, (3, 5), (20, 2), DType.FLOAT), HostTensor(0, 5, (3, 5), (10, 2), DType.INT),
        HostTensor(0, 5, (5, 3), (10, 2), DType.FLOAT),
    ):
        assert not take_turns(one, other)
    apart = HostTensor(0, 4, (3, 5), (15, 3), DType.FLOAT)
    assert not take_turns(apart, HostTensor(0, 5, (3, 5), (15, 3), DType.FLOAT))
