"""Convolutions of one dimension have the same bits whole and cut into stages, wherever their values lie."""

from __future__ import annotations

import copy

import poptorch
import pytest
import torch
from torch import nn


class Classifier(nn.Module):
    """Lines of 20 channels, ``[N, 20, L]``, and labels ``[N]``: three classes' scores, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(20, 32, 7, padding=3), nn.BatchNorm1d(32), nn.GELU(), nn.Conv1d(32, 4, 3, padding=3, groups=2),
            nn.Conv1d(4, 16, 1), nn.GroupNorm(1, 16), nn.Conv1d(16, 64, 7, padding=3),
        )
        self.head = nn.Linear(64, 3)

    def forward(self, lines: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(self.body(lines).mean(-1))
        return scores, poptorch.identity_loss(nn.functional.cross_entropy(scores, labels), "mean")


def trained(model: nn.Module, length: int) -> list[torch.Tensor]:
    """Return the scores of two steps of three micro-batches, and the weights behind them."""
    torch.manual_seed(1)
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1, use_combined_accum=False)
    training = poptorch.trainingModel(model, options, optimizer=optimiser)
    scores = [training(torch.randn(6, 20, length), torch.randint(0, 3, (6,)))[0] for _ in range(2)]
    training.copyWeightsToHost()
    training.destroy()
    return [*scores, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize("length", [40, 301])
def test_lines_have_the_same_bits_in_one_stage_and_in_two(length: int) -> None:
    torch.manual_seed(0)
    model = Classifier()
    whole = trained(copy.deepcopy(model), length)
    for first in (1, 3, 4, 6):
        staged = copy.deepcopy(model)
        staged.body[first] = poptorch.BeginBlock(staged.body[first], ipu_id=1)
        for one, other in zip(whole, trained(staged, length), strict=True):
            assert torch.equal(one, other)
