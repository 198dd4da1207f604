"""Pooling against eager torch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.immediate import run_op
from torchipu._kernels.abi import KernelTrap
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType
from torchipu.ops import pool  # noqa: F401

# size, window, stride, padding, dilation, ceil_mode
CASES = [
    ((24, 24), (2, 2), [], (0, 0), (1, 1), False),
    ((8, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((11, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((9, 35), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((112, 112), (3, 3), (2, 2), (1, 1), (1, 1), False),
    ((41, 67), (3, 3), (2, 2), (1, 1), (1, 1), True),
    ((40, 41), (3, 2), (1, 1), (1, 1), (2, 1), False),
    ((57, 70), (5, 4), (3, 3), (2, 0), (1, 1), True),
    ((7, 7), (7, 7), (7, 7), (0, 0), (1, 1), False),
    ((11, 19), (3, 19), (4, 19), (1, 0), (1, 1), True),
    ((11, 19), (3, 19), (2, 19), (0, 0), (1, 1), False),
    # columns three, four and five apart: more than a vector of them, fewer, one
    ((1, 203), (1, 4), (1, 4), (0, 0), (1, 1), False),
    ((5, 100), (2, 3), (2, 3), (0, 1), (1, 1), True),
    ((3, 66), (1, 2), (1, 4), (0, 0), (1, 3), False),
    ((4, 90), (2, 7), (1, 5), (1, 3), (1, 1), False),
    ((2, 49), (1, 4), (1, 3), (0, 2), (1, 1), False),
]


class ValuesAlone(MiniPlanner):
    """Of whose pools nobody reads the indices."""

    def wanted(self, tensor: Tensor) -> bool:
        return tensor.dtype is DType.FLOAT

    def finish(self, outputs: Sequence[Tensor]) -> list[torch.Tensor]:
        return super().finish(outputs[:1])


def attributes(case: tuple) -> dict[str, object]:
    _, window, stride, padding, dilation, ceil_mode = case
    return {
        "kernel_size": list(window),
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "ceil_mode": ceil_mode,
    }


@pytest.mark.parametrize("case", CASES)
def test_max_pool_gives_torch_values_indices_and_gradient(case: tuple) -> None:
    x = torch.randn(2, 3, *case[0])
    x[0, 1, -1, 3], x[1, 2] = float("nan"), -float("inf")
    x[0, 0, :3, :5] = 1.0  # ties
    attrs = attributes(case)
    y, indices = torch.ops.aten.max_pool2d_with_indices(x, *attrs.values())
    shapes = [(tuple(y.shape), DType.FLOAT), (tuple(y.shape), DType.LONG)]
    for threads in (1, 2):
        mine, where = run_op("aten.max_pool2d_with_indices.default", {"self": x}, attrs, shapes, threads)
        torch.testing.assert_close(mine, y, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(where, indices)
    dy = torch.randn_like(y)
    expected = torch.ops.aten.max_pool2d_with_indices_backward(dy, x, *attrs.values(), indices)
    operands = {"grad_output": dy, "self": x, "indices": indices}
    (dx,) = run_op("aten.max_pool2d_with_indices_backward.default", operands, attrs, [(tuple(x.shape), DType.FLOAT)], 2)
    torch.testing.assert_close(dx, expected)


@pytest.mark.parametrize("case", CASES)
def test_values_alone_are_those_beside_which_indices_are(case: tuple) -> None:
    x = torch.randn(2, 3, *case[0])
    x[0, 1, -1, 3], x[1, 2], x[0, 0, :3, :5] = float("nan"), -float("inf"), 1.0
    attrs = attributes(case)
    y, _ = torch.ops.aten.max_pool2d_with_indices(x, *attrs.values())
    shapes = [(tuple(y.shape), DType.FLOAT), (tuple(y.shape), DType.LONG)]
    for threads in (1, 2):
        plan = ValuesAlone(threads)
        (mine,) = run_op("aten.max_pool2d_with_indices.default", {"self": x}, attrs, shapes, planner=plan)
        torch.testing.assert_close(mine, y, rtol=0, atol=0, equal_nan=True)


def test_an_index_outside_the_plane_is_a_trap() -> None:
    operands = {
        "grad_output": torch.ones(1, 1, 1, 1),
        "self": torch.ones(1, 1, 2, 2),
        "indices": torch.full((1, 1, 1, 1), 4),
    }
    with pytest.raises(KernelTrap, match="index"):
        run_op(
            "aten.max_pool2d_with_indices_backward.default",
            operands,
            attributes(CASES[1]),
            [((1, 1, 2, 2), DType.FLOAT)],
        )


@pytest.mark.parametrize("divisor", [None, 3])
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("case", [c for c in CASES if c[4] == (1, 1)])
def test_average_pool_and_its_gradient_equal_torch(case: tuple, counts: bool, divisor: int | None) -> None:
    x = torch.randn(2, 3, *case[0])
    attrs = attributes(case)
    del attrs["dilation"]
    attrs = {**attrs, "count_include_pad": counts, "divisor_override": divisor}
    y = torch.ops.aten.avg_pool2d(x, *attrs.values())
    (mine,) = run_op("aten.avg_pool2d.default", {"self": x}, attrs, [(tuple(y.shape), DType.FLOAT)], 2)
    torch.testing.assert_close(mine, y)
    dy = torch.randn_like(y)
    expected = torch.ops.aten.avg_pool2d_backward(dy, x, *attrs.values())
    operands = {"grad_output": dy, "self": x}
    (dx,) = run_op("aten.avg_pool2d_backward.default", operands, attrs, [(tuple(x.shape), DType.FLOAT)], 2)
    torch.testing.assert_close(dx, expected)


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (9, 9)])
def test_adaptive_average_pool_equals_torch(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 7, 10)
    y = torch.ops.aten._adaptive_avg_pool2d(x, size)
    (mine,) = run_op(
        "aten._adaptive_avg_pool2d.default", {"self": x}, {"output_size": list(size)}, [(tuple(y.shape), DType.FLOAT)]
    )
    torch.testing.assert_close(mine, y)
    dy = torch.randn_like(y)
    (dx,) = run_op(
        "aten._adaptive_avg_pool2d_backward.default",
        {"grad_output": dy, "self": x},
        {},
        [(tuple(x.shape), DType.FLOAT)],
    )
    torch.testing.assert_close(dx, torch.ops.aten._adaptive_avg_pool2d_backward(dy, x))


@pytest.mark.parametrize("shape", [(8, 24), (7, 513), (5, 512), (1, 700), (40, 3)])
@pytest.mark.parametrize("size", [(2, 3), (1, 7), (5, 1)])
def test_adaptive_average_pools_of_planes_of_any_width_agree_with_float64(
    shape: tuple[int, int], size: tuple[int, int],
) -> None:
    x = torch.randn(2, 2, *shape)
    exact = torch.ops.aten._adaptive_avg_pool2d(x.double(), size)
    (mine,) = run_op(
        "aten._adaptive_avg_pool2d.default", {"self": x}, {"output_size": list(size)},
        [(tuple(exact.shape), DType.FLOAT)], 2,
    )
    torch.testing.assert_close(mine.double(), exact, rtol=2e-7, atol=2e-7)
