"""A model whose step is gone does not stay in memory, whatever torch keeps of captures."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import torchipu


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(8, 4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layer(x).square().mean()
        return loss


@pytest.mark.parametrize("is_trained", [False, True])
def test_weights_are_freed_with_the_step_and_the_model(is_trained: bool) -> None:
    model = Loss()
    x = torch.ones(3, 8)
    if is_trained:
        torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1))(x)
    else:
        torchipu.InferenceStep(model)(x)
    model(x)  # which may be used on
    left = weakref.ref(model), weakref.ref(model.layer[0].weight)
    del model
    gc.collect()
    assert [one() for one in left] == [None, None]
