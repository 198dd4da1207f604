"""Convolutions of groups that are trained, computed with their channels in blocks, against float64 torch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchipu
from tests.host.planned import planned_kernels


class Inverted(nn.Module):
    """A widened image, a convolution of groups with a stride, and one that is added to what it reads."""

    def __init__(self, window: int, of_group: int = 1, channels: int = 12, wide: int = 36) -> None:
        super().__init__()
        pad, groups = window // 2, wide // of_group
        self.widen, self.narrow = nn.Conv2d(channels, wide, 1, bias=False), nn.Conv2d(wide, channels, 1)
        self.down = nn.Conv2d(wide, wide, window, stride=2, padding=pad, groups=groups, bias=False)
        self.level = nn.Conv2d(wide, wide, window, padding=pad, groups=groups)
        self.norms = nn.ModuleList(nn.BatchNorm2d(wide) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norms[0](self.widen(x)))
        x = F.relu(self.norms[1](self.down(x)))
        return self.narrow(F.relu(self.level(x)) + x).square().mean()


DEPTHWISE = {"depthwise_input_blocked", "depthwise_weight_blocked"}
CASES = {  # the model, and kernels of its gradients
    "depthwise": (lambda: Inverted(3), DEPTHWISE),
    "wide": (lambda: Inverted(5), DEPTHWISE),
    "groups": (lambda: Inverted(3, 16, wide=64), {"conv_blocked", "conv_weight_blocked"}),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_float64_and_are_computed_in_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    make, blocked = CASES[name]
    model, x = make(), torch.randn(4, 12, 28, 26, requires_grad=True)
    eager, theirs = copy.deepcopy(model), x.detach().clone().requires_grad_()
    exact, wide = copy.deepcopy(model).double(), x.detach().double().requires_grad_()
    for loss in (eager(theirs), exact(wide)):
        loss.backward()
    names = planned_kernels(monkeypatch)
    options = {"allow_out_of_memory": True, "host_threads": 2}
    torch.compile(model, backend="ipu", options=options)(x).backward()
    assert blocked <= set(names)
    assert not {"depthwise", "depthwise_weight"} & set(names)
    found = ((input, *of.parameters()) for input, of in ((x, model), (theirs, eager), (wide, exact)))
    for one, other, wanted in zip(*found, strict=True):
        error, of_eager = (float((each.grad.double() - wanted.grad).abs().max()) for each in (one, other))
        assert error <= max(4 * of_eager, 1e-6 * float(wanted.grad.abs().max()))


def losses_of(name: str, pipelined: bool, threads: int) -> list[torch.Tensor]:
    """Return the losses of three updates, on one IPU or on two stages."""
    torch.manual_seed(5)
    model, x = CASES[name][0](), torch.randn(4, 12, 28, 26)
    if pipelined:
        torchipu.BeginBlock(model.level, "level", ipu_id=1)
    options = torchipu.Options(
        num_ipus=2 if pipelined else 1, gradient_accumulation=2, allow_out_of_memory=True, host_threads=threads,
    )
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.05), options)
    return [step(x) for _ in range(3)]


@pytest.mark.parametrize("name", ["depthwise", "groups"])
def test_trained_values_are_the_same_on_two_stages_and_any_number_of_threads(name: str) -> None:
    one = losses_of(name, pipelined=False, threads=1)
    for other in (losses_of(name, pipelined=False, threads=3), losses_of(name, pipelined=True, threads=2)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
