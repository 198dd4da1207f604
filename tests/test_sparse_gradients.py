"""Sparse gradients of tables: places and values of eager, for optimisers that take them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn


class Twice(nn.Module):
    """One table, read at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x) + self.table(x.flip(1)).sin()


class Weighted(nn.Module):
    """Bags by their offsets, with factors, and a row that does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(9, 4, sparse=True, mode="sum", padding_idx=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factors = torch.arange(x.numel()) * 0.5
        result: torch.Tensor = self.table(x.flatten(), torch.arange(x.shape[0]) * 2, per_sample_weights=factors)
        return result


@pytest.mark.parametrize(("make", "optimiser"), [
    (lambda: nn.Embedding(9, 4, sparse=True, padding_idx=0), torch.optim.SparseAdam), (Twice, torch.optim.SGD),
    (lambda: nn.EmbeddingBag(9, 4, sparse=True), torch.optim.Adagrad), (Weighted, torch.optim.SGD),
    (lambda: nn.EmbeddingBag(9, 4, sparse=True, mode="mean", padding_idx=1), torch.optim.SGD),
])
def test_sparse_gradients_are_those_of_eager(make: Callable[[], nn.Module], optimiser: Any) -> None:
    torch.manual_seed(3)
    torch._dynamo.reset()
    model = make()
    judge = copy.deepcopy(model)
    compiled: Any = torch.compile(model, backend="ipu")
    steps = [optimiser(list(one.parameters()), lr=0.1) for one in (model, judge)]
    # The third by the program of any size, in which torch cannot add sparse tensors.
    for rows in (3, 3, 3) if make is Twice else (2, 3, 4):
        x = torch.randint(9, (rows, 3))
        for one, step in zip([compiled, judge], steps, strict=True):
            step.zero_grad()
            one(x).square().sum().backward()
        for weight, expected in zip(model.parameters(), judge.parameters(), strict=True):
            assert weight.grad is not None
            assert expected.grad is not None
            assert weight.grad.is_sparse
            torch.testing.assert_close(weight.grad.to_dense(), expected.grad.to_dense())
        for step in steps:
            step.step()
    for weight, expected in zip(model.parameters(), judge.parameters(), strict=True):
        torch.testing.assert_close(weight, expected)
