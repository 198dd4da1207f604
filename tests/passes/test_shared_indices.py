"""Updates by an expanded index add whole rows."""

from __future__ import annotations

import pytest
import torch

import torchipu
from torchipu.device.tilings.indexed import SHARED_INDEX
from torchipu.ir.graph import walk_ops
from torchipu.passes.shared_indices import KIND


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


class Both(torch.nn.Module):
    """Adds rows and elements up."""

    def forward(self, x: torch.Tensor, index: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return Sums()(x, index), Elements()(x, own)


def test_an_index_of_each_element_beside_one_of_rows_is_not_shared() -> None:
    x, index, own = torch.randn(6, 4), torch.randint(70, (6,)), torch.randint(70, (6, 4))
    step = torchipu.InferenceStep(Both().eval(), torchipu.Options())
    torch.testing.assert_close(step(x, index, own), Both()(x, index, own))
    shared = [op.attrs.get(SHARED_INDEX, False) for op in step.compiled.graph.ops if op.kind == KIND]
    assert shared == [True, False]


class Branches(torch.nn.Module):
    """Adds rows up where the condition holds."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, Sums(), lambda x, index: torch.zeros(70, x.shape[1]), (x, index))


def test_an_index_of_rows_is_shared_within_a_branch() -> None:
    x, index = torch.rand(6, 4), torch.randint(70, (6,))
    step = torchipu.InferenceStep(Branches().eval(), torchipu.Options())
    torch.testing.assert_close(step(x, index), Sums()(x, index))
    shared = [op.attrs.get(SHARED_INDEX, False) for op in walk_ops(step.compiled.graph.ops) if op.kind == KIND]
    assert shared == [True]


class Shaped(torch.nn.Module):
    """Adds rows up by an index that is expanded from a given shape to that of the rows."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape).scatter_add(self.dim, index.expand_as(x), x)


@pytest.mark.parametrize(("shape", "dim", "is_shared"), [
    ((6, 1), 0, True), ((6, 1), -2, True), ((4,), 1, True), ((1, 4), 1, True), ((1, 4), -1, True),
    ((6, 1), 1, False), ((1, 4), 0, False), ((4,), 0, False), ((1, 1), 0, False), ((6, 4), 0, False),
])
def test_an_index_is_shared_where_it_is_expanded_along_all_dimensions_but_its_own(
    shape: tuple[int, ...], dim: int, is_shared: bool,
) -> None:
    x, index = torch.randn(6, 4), torch.randint(4, shape)
    step = torchipu.InferenceStep(Shaped(dim).eval(), torchipu.Options())
    torch.testing.assert_close(step(x, index), Shaped(dim)(x, index))
    assert [op.attrs.get(SHARED_INDEX, False) for op in step.compiled.graph.ops if op.kind == KIND] == [is_shared]
