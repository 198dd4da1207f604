"""Products of operands that are expanded: one row, column or matrix that stands for all."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import torchipu

SIZES = {"few": (8, 3, 5), "some": (64, 70, 40), "many": (200, 300, 150)}
EXPANDED = ("", "rows", "columns", "both")
CASES = [*itertools.product(EXPANDED, EXPANDED, (False, True), (False, True))]
"""How the left and the right operand are expanded, and whether each lies the other way round."""


class Products(nn.Module):
    def forward(self, *operands):
        pairs = zip(CASES, operands[::2], operands[1::2], strict=True)
        return [(left.mT if case[2] else left) @ (right.mT if case[3] else right) for case, left, right in pairs]


def operand(rows: int, columns: int, expanded: str, *, turned: bool, batch: int) -> torch.Tensor:
    """Return a matrix, or a batch of one, that is ``[rows, columns]`` once it is turned back."""
    held = torch.randn(1 if expanded in ("rows", "both") else rows, 1 if expanded in ("columns", "both") else columns)
    matrix = held.expand(rows, columns)
    matrix = matrix.mT if turned else matrix
    return matrix.expand(batch, *matrix.shape) if batch else matrix


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("size", SIZES)
def test_products_of_expanded_operands(size: str, batch: int) -> None:
    rows, inner, columns = SIZES[size]
    operands = []
    for left, right, left_turned, right_turned in CASES:
        operands.append(operand(rows, inner, left, turned=left_turned, batch=batch))
        operands.append(operand(inner, columns, right, turned=right_turned, batch=batch))
    returned = torchipu.InferenceStep(Products(), torchipu.Options(allow_out_of_memory=True))(*operands)
    exact = Products()(*(one.double() for one in operands))
    for case, ours, its in zip(CASES, returned, exact, strict=True):
        torch.testing.assert_close(ours.double(), its, rtol=1e-4, atol=1e-4, msg=lambda m, case=case: f"{case}\n{m}")


class Summed(nn.Module):
    """Its loss depends on the sums of rows of a product, so that one gradient of it stands for a whole row."""

    def __init__(self, *sizes: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(sizes) / sizes[-2] ** 0.5)

    def forward(self, x):
        return (x @ self.weight).sum(-1).square().mean()


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("sizes", [(3, 5), (70, 40), (300, 150), (2, 3, 5), (2, 300, 150)], ids=str)
def test_the_gradient_of_a_product_whose_rows_are_summed(sizes: tuple[int, ...], accumulation: int) -> None:
    model, x = Summed(*sizes), torch.randn(60 * accumulation, sizes[-2])
    if len(sizes) > 2:  # a micro-batch holds as many matrices as the weight
        x = torch.randn(sizes[0] * accumulation, 64, sizes[-2])
    exact = Summed(*sizes).double()
    exact.load_state_dict(model.state_dict())
    sum(exact(part.double()) for part in x.chunk(accumulation)).div(accumulation).backward()
    before = model.weight.detach().double()
    options = torchipu.Options(gradient_accumulation=accumulation, allow_out_of_memory=True)
    torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=1.0), options)(x)
    torch.testing.assert_close(before - model.weight.detach().double(), exact.weight.grad, rtol=1e-3, atol=1e-4)
