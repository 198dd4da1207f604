"""Convolutions whose groups fill half a vector, two groups in one, against float64 torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.test_conv_blocked import blocked, plain
from torchipu.host.emit import blocked_layout, conv_blocked, merged_groups
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.vectors import vector_lanes

# images, groups, results of a group in half vectors, size, window, stride, padding, dilation
CASES = [
    (2, 2, 1, (9, 11), (3, 3), 1, 1, 1),
    (3, 6, 1, (1, 61), (1, 7), (1, 2), (0, 3), 1),
    (1, 4, 3, (7, 6), (1, 1), 1, 0, 1),
    (2, 4, 2, (8, 9), (2, 3), 1, 2, 2),
]


@pytest.mark.parametrize("case", CASES)
def test_two_groups_in_one_equal_float64(case: tuple) -> None:
    n, g, halves, (h, w), (kh, kw), stride, padding, dilation = case
    torch.manual_seed(9)
    channels = vector_lanes() // 2
    x, weight = torch.randn(n, g * channels, h, w), torch.randn(g * halves * channels, channels, kh, kw)
    exact = F.conv2d(x.double(), weight.double(), None, stride, padding, dilation, g)
    pairs = (pair if isinstance(pair, tuple) else (pair, pair) for pair in (stride, padding, dilation))
    window = (kh, kw, *(size for pair in pairs for size in pair))
    s = Shape(n, g, channels, halves * channels, h, w, *exact.shape[2:], *window)
    together = merged_groups.merged(s)
    assert together is not None
    assert conv_blocked.serves(together)
    found = []
    for threads in (1, 3):
        plan = MiniPlanner(threads)
        out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
        dense = merged_groups.emit_weights(plan, s, plan.hold(weight))
        conv_blocked.emit(plan, together, out, blocked(plan, x), dense, conv_blocked.Ending())
        found.append(plain(plan, out, exact.shape))
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=2e-6 * float(exact.abs().max()))
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize(("groups", "channels", "results"), [(3, 1, 1), (2, 2, 2), (4, 1, 3), (2, 1, 0.5)])
def test_groups_of_other_sizes_stay_apart(groups: int, channels: int, results: float) -> None:
    half = vector_lanes() // 2
    s = Shape(1, groups, channels * half, int(results * half), 9, 9, 9, 9, 3, 3, 1, 1, 1, 1, 1, 1)
    assert (merged_groups.merged(s) is None) == ((groups, channels, results) != (4, 1, 3))
