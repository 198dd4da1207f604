"""Kernels of recurrent layers, on guarded buffers and several threads, against plain torch."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import run_op
from torchipu.capture import recurrence

CELLS = list(recurrence.STEPS)
# time, batch, hidden: below, at and beyond a vector and a register tile; few samples, whose tiles have more units
SIZES = [(1, 1, 1), (3, 2, 5), (4, 9, 16), (2, 37, 19), (2, 1, 140), (2, 4, 75)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("cell", [*CELLS, "projected"])
def test_layers_write_their_results_alone(cell: str, size: tuple[int, int, int], reverse: bool) -> None:
    torch.manual_seed(0)
    time, batch, hidden = size
    projects, cell = cell == "projected", "lstm" if cell == "projected" else cell
    state, gates = (hidden + 1) // 2 if projects else hidden, hidden * recurrence.STEPS[cell]
    c0 = torch.randn(batch, hidden) if cell == "lstm" else None
    h0, weight = torch.randn(batch, state), torch.randn(gates, state) / 3
    projection = torch.randn(state, hidden) / 3 if projects else None
    bias = torch.randn(gates) if cell == "gru" else None
    given = (torch.randn(time, batch, gates), h0, c0, weight, bias, projection, cell, reverse)
    outputs, last, kept = torch.ops.ipu.recurrence(*given)
    gradients = torch.randn_like(outputs), torch.randn_like(last)
    behind = (*gradients, kept, outputs, h0, c0, weight, projection, cell, reverse)
    for threads in (1, 3):
        for target, args in (("ipu.recurrence.default", given), ("ipu.recurrence_backward.default", behind)):
            for mine, plain in zip(*run_op(target, *args, threads=threads), strict=True):
                torch.testing.assert_close(mine, plain, rtol=2e-5, atol=2e-5)
