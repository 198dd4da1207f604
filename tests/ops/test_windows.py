"""Gradients of windows along a dimension against float64, over layouts of what they hold, steps and blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.window import WINDOW_BLOCK
from torchipu.optable.spec import lookup

TARGET = "aten.unfold_backward.default"
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row-major": torch.Tensor.contiguous,
    "positions first": lambda held: held.movedim(-1, 0).contiguous().movedim(0, -1),
    "positions before the last": lambda held: held.movedim(-1, -2).contiguous().movedim(-2, -1),
    "windows last": lambda held: held.movedim(1, -1).contiguous().movedim(-1, 1),
    "repeated": lambda held: held[..., :1].expand_as(held),
    "every other": lambda held: held.repeat_interleave(2, -1)[..., ::2],
}
SHAPES = [  # of what was unfolded, dimension, size, step
    ((3, 20, 5), 1, 4, 1), ((2, 31, 70), 1, 7, 2), ((2, 40, 33), 1, 17, 5), ((4, 90), 1, 20, 3), ((50,), 0, 9, 2),
    ((2, 3, 17), -1, 5, 4), ((2, 9, 4, 18), 1, 3, 2), ((3, 12, 7), 0, 2, 1), ((2, 12, 5), 1, 3, 3),
    ((2, 14, 5), 1, 3, 4), ((2, WINDOW_BLOCK // 7, 20), 1, 33, 8), ((1, 2 * WINDOW_BLOCK + 11), 1, 400, 160),
    ((1, 2 * WINDOW_BLOCK + 11), 1, 5, 1),
]


def gradient(held: torch.Tensor, shape: tuple[int, ...], dim: int, size: int, step: int, threads: int) -> torch.Tensor:
    plan = MiniPlanner(threads)
    given, result = Tensor("grad_in", tuple(held.shape), DType.FLOAT), Tensor("out", shape, DType.FLOAT)
    plan.values[given] = plan.hold(held)
    attrs = {"input_sizes": list(shape), "dim": dim, "size": size, "step": step}
    spec = lookup(TARGET)
    assert spec is not None
    assert spec.emit is not None
    spec.emit(Op(spec.kind, (given,), (result,), attrs, TARGET, ("grad_in",)), plan)
    return plan.fetch(plan.values[result])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "dim", "size", "step"), SHAPES)
def test_windows_add_up_where_they_overlap(layout: str, shape: tuple[int, ...], dim: int, size: int, step: int) -> None:
    torch.manual_seed(0)
    unfolded = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    windows = unfolded.unfold(dim, size, step)
    held = LAYOUTS[layout](torch.randn(windows.shape))
    windows.backward(held.double())
    found = gradient(held, shape, dim, size, step, threads=1)
    assert unfolded.grad is not None
    torch.testing.assert_close(found.double(), unfolded.grad, rtol=1e-5, atol=2e-5)
    assert torch.equal(gradient(held, shape, dim, size, step, threads=3), found)


def test_windows_of_a_number_and_of_nothing() -> None:
    assert gradient(torch.tensor([2.5]), (), 0, 1, 1, threads=1).item() == 2.5
    assert gradient(torch.zeros(0, 3, 4), (0, 6), 1, 4, 1, threads=1).shape == (0, 6)
