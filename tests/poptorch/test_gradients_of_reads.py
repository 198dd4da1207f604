"""Gradients of what forward read before it, or a stage behind it, wrote it anew."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchipu.poptorch as poptorch
from tests.poptorch.models import options, sgd


class Carried(nn.Module):
    """Reads states and writes them before the backward has read them; ``keeps`` copies them first, as eager needs."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 3))
        self.cell = nn.LSTM(3, 3)
        for name in ("hidden", "inner"):
            self.register_buffer(name, torch.zeros(1, 2, 3))
        self.register_buffer("factor", torch.ones(3))
        self.register_buffer("steps", torch.ones(()))

    def read(self, state: torch.Tensor) -> torch.Tensor:
        return state.clone() if self.keeps else state

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = x * self.weight * self.read(self.factor)
        self.factor.mul_(1.5)
        y, (hidden, inner) = self.cell(scaled, (self.read(self.hidden), self.read(self.inner)))
        self.hidden.copy_(hidden.detach())
        self.inner[:, 0] = inner.detach()[:, 0]
        y = self.read(torch.tanh(y * self.read(self.steps)))
        self.steps += 1
        late = self.read(y) ** 2
        y.mul_(2.0)
        return y, poptorch.identity_loss(late.sum() + y.sum(), "sum")


def test_gradients_are_those_of_what_was_read_before_forward_wrote_it(recwarn: pytest.WarningsRecorder) -> None:
    twin, model = Carried(keeps=True), Carried(keeps=False)
    model.load_state_dict(twin.state_dict())
    step = poptorch.trainingModel(model, options(), sgd(model))
    judge = torch.optim.SGD(twin.parameters(), lr=0.1)
    for seed in range(3):
        x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(seed))
        y, loss = step(x)
        judge.zero_grad()
        expected, expected_loss = twin(x)
        expected_loss.backward()
        judge.step()
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(loss, expected_loss)
    for (name, value), (_, judged) in zip(model.state_dict().items(), twin.state_dict().items(), strict=True):
        torch.testing.assert_close(value, judged, msg=lambda words, name=name: f"{name}: {words}")
    assert not [warning for warning in recwarn if "Error detected in" in str(warning.message)]


class Staged(nn.Module):
    """Two stages, the first of which reads a state that it then writes, and takes a gradient of itself."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.first = poptorch.BeginBlock(nn.Linear(3, 3), ipu_id=0)
        self.second = poptorch.BeginBlock(nn.Linear(3, 3), ipu_id=1)
        self.register_buffer("state", torch.linspace(0.5, 1.5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) * (self.state.clone() if self.keeps else self.state)
        self.state.mul_(0.9)
        slope, = torch.autograd.grad(torch.tanh(y).sum(), y, create_graph=True)
        z = checkpoint(torch.exp, self.second(y), use_reentrant=False)
        return poptorch.identity_loss((z + slope).square().mean(), "mean")


def test_gradients_of_what_was_read_in_stages_with_checkpoints_and_second_derivatives() -> None:
    twin, model = Staged(keeps=True), Staged(keeps=False)
    model.load_state_dict(twin.state_dict())
    poptorch.removeBlocks(twin)
    step = poptorch.trainingModel(model, options(1, 3), sgd(model))
    judge = torch.optim.SGD(twin.parameters(), lr=0.1)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        step(x)
        judge.zero_grad()
        for part in x.chunk(3):
            (twin(part) / 3).backward()
        judge.step()
    for (name, value), (_, judged) in zip(model.state_dict().items(), twin.state_dict().items(), strict=True):
        torch.testing.assert_close(value, judged, msg=lambda words, name=name: f"{name}: {words}")
