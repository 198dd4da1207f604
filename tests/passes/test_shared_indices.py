"""Updates by an expanded index add whole rows."""

from __future__ import annotations

import torch

import torchipu


class Sums(torch.nn.Module):
    """Adds rows up by an index of each."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(70, x.shape[1]).scatter_add(0, index[:, None].expand_as(x), x)


class Elements(torch.nn.Module):
    """Adds elements up by an index of their own."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(70, x.shape[1]).scatter_add(0, index, x)


def cycles(model: torch.nn.Module, *inputs: torch.Tensor) -> int:
    step = torchipu.InferenceStep(model.eval(), torchipu.Options())
    assert torch.allclose(step(*inputs), model(*inputs), atol=1e-5)
    return step.compiled.cost.cycles


def test_rows_are_cheaper_than_their_elements() -> None:
    x, index = torch.randn(4000, 64), torch.randint(70, (4000,))
    assert cycles(Sums(), x, index) < cycles(Elements(), x, index[:, None].repeat(1, 64))
