"""Channels moved from a value that has them in blocks into another."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from torchipu.host.emit.blocked_layout import PART_PIXELS, blocked_shape, emit_move
from torchipu.host.emit.vectors import vector_lanes

SIZES = [(3, 5), (1, PART_PIXELS), (2, PART_PIXELS + 7)]


def blocked(plain: torch.Tensor, rest: float) -> torch.Tensor:
    """Return ``[N, C, H, W]`` as ``[N, blocks, H, W, lanes]``, with a number where there are no channels."""
    images, channels, height, width = plain.shape
    shape = blocked_shape(plain.shape)
    held = torch.full((images, shape[1] * shape[4], height, width), rest)
    held[:, :channels] = plain
    return held.unflatten(1, (shape[1], shape[4])).permute(0, 1, 3, 4, 2).contiguous()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", [0, 3, 8, 15, 16])
@pytest.mark.parametrize("target", [0, 5, 8, 16, 29])
@pytest.mark.parametrize("channels", [1, 8, 13, 16, 17, 40])
def test_channels_are_moved_and_others_stay(channels: int, target: int, source: int, size: tuple[int, int]) -> None:
    x, y = torch.randn(2, source + channels + 2, *size), torch.randn(2, target + channels + 3, *size)
    wanted = y.clone()
    wanted[:, target : target + channels] = x[:, source : source + channels]
    for threads in (1, 3):
        plan = MiniPlanner(threads)
        held = plan.hold(blocked(y, 9.0))
        emit_move(plan, held, plan.hold(blocked(x, 7.0)), source=source, target=target, channels=channels)
        assert torch.equal(plan.fetch(held), blocked(wanted, 9.0))


def test_a_block_has_the_lanes_of_a_vector() -> None:
    assert blocked_shape((2, 3 * vector_lanes() + 1, 5, 6)) == (2, 4, 5, 6, vector_lanes())
