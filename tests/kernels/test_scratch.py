"""Kernels keep to the scratch that their steps ask for; a step that asks for less than its kernel takes is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner, run_op
from tests.kernels.test_conv_blocked import blocked, layers_of
from torchipu._kernels.abi import CHECKED
from torchipu.host.emit import blocked_layout, conv_blocked, volume, winograd, winograd_weight
from torchipu.optable.volume import Volume

pytestmark = pytest.mark.skipif(CHECKED, reason="a sanitizer ends the process at the first byte behind the scratch")
CONVOLUTION = (2, 1, 24, 40, (10, 12), (3, 3), 1, 1, 1)
VOLUME = Volume(2, 1, 3, 5, (4, 5, 6), (3, 4, 5), (2, 2, 2), (1, 1, 1), (0, 0, 0), (1, 1, 1))


def convolve(plan: MiniPlanner) -> None:
    x, weight, exact, shape = layers_of(CONVOLUTION)
    out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
    winograd.emit(plan, shape, out, blocked(plan, x), plan.hold(weight), conv_blocked.Ending())


def sum_gradient_of_weights(plan: MiniPlanner) -> None:
    x, weight, exact, shape = layers_of(CONVOLUTION)
    dy = torch.ones(exact.shape)
    winograd_weight.emit(plan, shape, plan.scratch(weight.shape), blocked(plan, dy), blocked(plan, x))


def convolve_volumes(plan: MiniPlanner) -> None:
    x, weight = plan.hold(torch.randn(2, 3, 4, 5, 6)), plan.hold(torch.randn(5, 3, 2, 2, 2))
    volume.emit_forward(plan, VOLUME, plan.scratch((2, 5, 3, 4, 5)), x, weight, None)


def sum_gradient_of_weights_of_volumes(plan: MiniPlanner) -> None:
    x, dy = plan.hold(torch.randn(2, 3, 4, 5, 6)), plan.hold(torch.randn(2, 5, 3, 4, 5))
    volume.emit_weight_gradient(plan, VOLUME, plan.scratch((5, 3, 2, 2, 2)), dy, x)


def choose(plan: MiniPlanner) -> None:
    """Choose of a row of which just as many are left after a byte of their keys as are then merged."""
    row = torch.cat([torch.arange(744.0) + 1, -torch.rand(256) - 4])
    run_op("aten.topk.default", row, 200, -1, False, True, planner=plan)


def draw(plan: MiniPlanner) -> None:
    results = [torch.zeros(3, 20, dtype=torch.int64)]
    run_op("aten.multinomial.default", torch.rand(3, 50), 20, False, planner=plan, results=results)


def add_up_bags_of_halves(plan: MiniPlanner) -> None:
    table, index = torch.randn(9, 40).half(), torch.tensor([1, 4, 1, 8, 0])
    run_op("aten._embedding_bag.default", table, index, torch.tensor([0, 2]), planner=plan)


RUNS = {
    "winograd": convolve, "winograd_weight": sum_gradient_of_weights, "volume_forward": convolve_volumes,
    "volume_weight": sum_gradient_of_weights_of_volumes, "sort": choose, "random_choice": draw,
    "bag_rows": add_up_bags_of_halves,
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", RUNS)
def test_a_step_that_asks_for_too_little_is_noticed(kernel: str, threads: int) -> None:
    """By 64 bytes, as what is aligned to a line of the cache leaves fewer unused."""
    run: Callable[[MiniPlanner], None] = RUNS[kernel]
    whole = MiniPlanner(threads)
    run(whole)
    assert kernel in whole.steps

    class Less(MiniPlanner):
        def step(self, *args: Any, scratch_bytes: int = 0, **kwargs: Any) -> None:
            super().step(*args, scratch_bytes=max(0, scratch_bytes - 64), **kwargs)

    with pytest.raises(RuntimeError, match=f"{kernel} wrote past the [0-9]+ bytes of scratch that its step asks for"):
        run(Less(threads))
