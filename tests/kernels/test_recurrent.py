"""Kernels of recurrent layers, on guarded buffers and several threads, against plain torch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.kernels.elem_planner import run_op
from torchipu import Options, TrainStep
from torchipu._kernels.abi import CHECKED
from torchipu.capture import recurrence
from torchipu.ops import recurrent as records

CELLS = list(recurrence.STEPS)
# time, batch, hidden: below, at and beyond a vector and a register tile; few samples, whose tiles have more units; and
# weights that threads share out by units, in parts of which the last is smaller, for few samples and for many
SIZES = [(1, 1, 1), (3, 2, 5), (4, 9, 16), (2, 37, 19), (2, 1, 140), (2, 4, 75), (4, 3, 200), (3, 33, 520)]
# Sanitizers see whole layers and the smallest parts. That bits are the same for more numbers of threads they do not
# tell, and the plain kernels are asked.
THREADS = (1, 7) if CHECKED else (1, 2, 3, 7)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("cell", [*CELLS, "projected"])
def test_layers_write_their_results_alone(cell: str, size: tuple[int, int, int], reverse: bool) -> None:
    torch.manual_seed(0)
    time, batch, hidden = size
    projects, cell = cell == "projected", "lstm" if cell == "projected" else cell
    state, gates = (hidden + 1) // 2 if projects else hidden, hidden * recurrence.STEPS[cell]
    c0 = torch.randn(batch, hidden) if cell == "lstm" else None
    h0, weight = torch.randn(batch, state), torch.randn(gates, state) / max(3, state**0.5)
    projection = torch.randn(state, hidden) / max(3, hidden**0.5) if projects else None
    bias = torch.randn(gates) if cell == "gru" else None
    given = (torch.randn(time, batch, gates), h0, c0, weight, bias, projection, cell, reverse)
    outputs, last, kept = torch.ops.ipu.recurrence(*given)
    gradients = torch.randn_like(outputs), torch.randn_like(last)
    behind = (*gradients, kept, outputs, h0, c0, weight, projection, cell, reverse)
    for threads in (1, 3):
        for target, args in (("ipu.recurrence.default", given), ("ipu.recurrence_backward.default", behind)):
            for mine, plain in zip(*run_op(target, *args, threads=threads), strict=True):
                torch.testing.assert_close(mine, plain, rtol=2e-5, atol=2e-5)


class SquareOfResult(nn.Module):
    """A layer and a loss over all that it returns for each step."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0].square().sum()


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_units_that_threads_share_out_have_the_same_bits_for_any_number_of_threads(layer: type, batch: int) -> None:
    torch.manual_seed(0)
    model = layer(40, 200, batch_first=True, bidirectional=True)
    x = torch.randn(batch, 9, 40)
    exact = copy.deepcopy(model).double()
    loss = exact(x.double())[0].square().sum()
    loss.backward()
    found = []
    for threads in THREADS:
        ours = copy.deepcopy(model)
        optimizer = torch.optim.SGD(ours.parameters(), lr=1.0)
        step = TrainStep(SquareOfResult(ours), optimizer, Options(host_threads=threads))
        found.append((step(x), [parameter.detach().clone() for parameter in ours.parameters()]))
        assert any(one.rounds > 1 for one in step._bound.host_plan.steps)
    for loss_found, weights in found:
        torch.testing.assert_close(loss_found.double(), loss, rtol=1e-5, atol=0)
        for weight, before, reference in zip(weights, model.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(before.double() - weight.double(), reference.grad, rtol=2e-4, atol=2e-4)
    for loss_found, weights in found[1:]:
        assert torch.equal(loss_found, found[0][0])
        assert all(map(torch.equal, weights, found[0][1]))


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_units_have_the_bits_of_samples(layer: type, is_half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = SquareOfResult(layer(24, 256, num_layers=2, batch_first=True))
    model = model.half() if is_half else model
    x = torch.randn(4, 7, 24, dtype=torch.float16 if is_half else torch.float32)
    found = []
    for is_by_units in (True, False):
        monkeypatch.setattr(records._Sizes, "is_by_units", is_by_units)
        ours = copy.deepcopy(model)
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.01)
        options = Options(host_threads=2, gradient_accumulation=2, stochastic_rounding=is_half, seed=1)
        step = TrainStep(ours, optimizer, options)
        found.append([step(x), *ours.parameters()])
        assert any(one.rounds > 1 for one in step._bound.host_plan.steps) is is_by_units
    assert all(map(torch.equal, *found))
