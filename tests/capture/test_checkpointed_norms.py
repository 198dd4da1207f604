"""Batch normalisations under torch.utils.checkpoint, which the backward computes again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.host.planned import planned_kernels


class Net(nn.Module):
    """Two blocks, each under a checkpoint if asked."""

    def __init__(self, *, is_checkpointed: bool, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU())
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x


def trained(model: nn.Module, run: nn.Module, xs: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of two steps added up, and the buffers after them."""
    for x in xs:
        run(x).square().mean().backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*grads, *(buffer.double() for buffer in model.buffers())]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_kept_once_and_gradients_are_right(
    momentum: float | None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    kernels = planned_kernels(monkeypatch)
    plain = Net(is_checkpointed=False, momentum=momentum)
    model = Net(is_checkpointed=True, momentum=momentum)
    model.load_state_dict(plain.state_dict())
    exact, xs = copy.deepcopy(plain).double(), torch.randn(2, 3, 4, 9, 8)
    found = trained(model, torch.compile(model, backend="ipu"), xs)
    for mine, wanted in zip(found, trained(exact, exact, xs.double()), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=1e-6)
    norms = [name for name in kernels if name in ("batch_norm", "batch_moments", "batch_moments_blocked")]
    assert len(norms) == 4  # each once in the forward and once in the backward


class Beside(nn.Module):
    """A norm outside of a checkpoint, in it two of the same values that differ in what they add to variances, and one
    by running statistics, which its gradient needs.
    """

    def __init__(self, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.conv, self.outer = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.first, self.second = nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4, eps=0.5, affine=False)
        self.frozen = nn.BatchNorm2d(4).eval()
        nn.init.uniform_(self.frozen.running_var, 0.1, 0.5)

    def both(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).sigmoid() + self.second(x).tanh() + self.frozen(x).square()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.outer(self.conv(x)).relu()
        return checkpoint(self.both, x, use_reentrant=False) if self.is_checkpointed else self.both(x)


def test_norms_that_differ_and_norms_outside_stay_what_they_are() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain, model = Beside(is_checkpointed=False), Beside(is_checkpointed=True)
    model.load_state_dict(plain.state_dict())
    exact, xs = copy.deepcopy(plain).double(), torch.randn(2, 3, 4, 9, 8)
    found = trained(model, torch.compile(model, backend="ipu"), xs)
    for mine, wanted in zip(found, trained(exact, exact, xs.double()), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=2e-5)
