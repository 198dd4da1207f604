"""Systems of equations with triangular matrices against eager PyTorch in float64: every side, triangle and diagonal."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tests.kernels.immediate import run_op
from torchipu.ir.types import DType
from torchipu.ops import triangular  # noqa: F401

WAYS = [
    {"upper": upper, "left": left, "unitriangular": unit}
    for upper, left, unit in itertools.product((False, True), repeat=3)
]
SIZES = [(1, 1, 1), (2, 3, 5), (3, 4, 16), (2, 7, 17), (1, 64, 33), (5, 65, 1)]
"""Batches, sizes of a matrix, and how many systems have the same."""


def drawn(batch: int, size: int, systems: int, is_left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return matrices whose other triangle must not be read, and what is given."""
    draws = torch.Generator().manual_seed(size)
    matrices = torch.randn(batch, size, size, generator=draws) / size + 2 * torch.eye(size)
    shape = (batch, size, systems) if is_left else (batch, systems, size)
    return matrices, torch.randn(shape, generator=draws)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(name for name, here in way.items() if here) or "none")
def test_unknowns(way: dict[str, bool], sizes: tuple[int, int, int]) -> None:
    matrices, given = drawn(*sizes, way["left"])
    other = torch.ones(sizes[1], sizes[1], dtype=torch.bool)
    ignored = other.tril(-1) if way["upper"] else other.triu(1)
    if way["unitriangular"]:
        ignored = ignored | torch.eye(sizes[1], dtype=torch.bool)
    exact = torch.linalg.solve_triangular(matrices.double(), given.double(), **way)
    operands = {"self": matrices.masked_fill(ignored, torch.nan), "B": given}
    found = [
        run_op("aten.linalg_solve_triangular.default", operands, way, [(tuple(given.shape), DType.FLOAT)], threads)[0]
        for threads in (1, 2)
    ]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=1e-5)


def test_matrix_without_a_solution_gives_what_eager_gives() -> None:
    matrices, given = torch.tensor([[[0.0, 0.0], [1.0, 2.0]]]), torch.tensor([[[1.0, -1.0, 0.0], [1.0, 1.0, 1.0]]])
    way = {"upper": False, "left": True, "unitriangular": False}
    (found,) = run_op(
        "aten.linalg_solve_triangular.default", {"self": matrices, "B": given}, way, [((1, 2, 3), DType.FLOAT)], 1,
    )
    torch.testing.assert_close(found, torch.linalg.solve_triangular(matrices, given, **way), equal_nan=True)


class Solved(nn.Module):
    """Unknowns of systems whose matrices are a parameter."""

    def __init__(self, *shape: int, **way: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrices = nn.Parameter(torch.randn(shape) / shape[-1] + 2 * torch.eye(shape[-1]))
        self.way = way

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(self.matrices, given, **self.way).sin()


@pytest.mark.parametrize(
    ("matrices", "given"),
    [((4, 4), (4, 9)), ((2, 1, 4, 4), (3, 4, 4)), ((5, 5), (2, 3, 5, 5)), ((3, 6, 6), (6, 6)), ((2, 4, 4), (2, 4, 0))],
    ids=str,
)
@pytest.mark.parametrize("is_left", [False, True])
def test_batches_broadcast_and_train(matrices: tuple[int, ...], given: tuple[int, ...], is_left: bool) -> None:
    if not is_left:
        given = (*given[:-2], given[-1], given[-2])
    torch._dynamo.reset()
    model, x = Solved(*matrices, upper=False, left=is_left), torch.randn(given)
    exact = Solved(*matrices, upper=False, left=is_left).double()
    with torch.no_grad():
        exact.matrices.copy_(model.matrices)
    found = torch.compile(model, backend="ipu")(x)
    judged = exact(x.double())
    assert found.shape == judged.shape
    assert found.stride() == model(x).stride()
    torch.testing.assert_close(found.double(), judged, rtol=1e-5, atol=1e-5)
    found.square().sum().backward()
    judged.square().sum().backward()
    assert model.matrices.grad is not None
    torch.testing.assert_close(model.matrices.grad.double(), exact.matrices.grad, rtol=1e-4, atol=1e-4)
