"""How products against ready panels, and attention, are cut into the items that threads share out."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchipu
from torchipu.host.emit.matmul import BLOCK
from torchipu.host.steps import Step


def steps_of(model: nn.Module, *inputs: Tensor, kernel: str) -> list[Step]:
    """Return the host steps of a kernel, of a program whose results equal float64."""
    step = torchipu.InferenceStep(model, options=torchipu.Options(frozen_weights=True))
    result = step(*inputs)
    expected = copy.deepcopy(model).double()(*(x.double() for x in inputs))
    torch.testing.assert_close(result, expected.float(), rtol=1e-4, atol=1e-5)
    assert step._bound is not None
    return [one for one in step._bound.host_plan.steps if one.kernel is not None and one.kernel.name == kernel]


@pytest.mark.parametrize(("rows", "columns"), [(1024, 1160), (700, 1160), (600, 290)])
def test_rows_are_packed_once_and_few_threads_get_as_many_items_each(rows: int, columns: int) -> None:
    (product,) = steps_of(nn.Linear(400, columns), torch.randn(rows, 400), kernel="matmul")
    assert product.items % 4 == 0
    assert product.ints.column_block >= columns  # type: ignore[union-attr]
    assert product.ints.row_block * product.items < rows + product.items  # type: ignore[union-attr]


@pytest.mark.parametrize("rows", [130, 150, 167, 190, 300, 1576])
def test_other_items_have_no_more_rows_than_their_scratch_holds(rows: int) -> None:
    (product,) = steps_of(nn.Linear(40, 70), torch.randn(rows, 40), kernel="matmul")
    assert product.ints.row_block <= BLOCK[0]  # type: ignore[union-attr]


class Attention(nn.Module):
    """Attention of `[N, heads, T, width]` to itself."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(("heads", "queries", "items"), [(8, 130, 8), (4, 300, 8), (2, 130, 8), (1, 20, 1)])
def test_items_of_attention_are_heads_where_these_keep_threads_busy(heads: int, queries: int, items: int) -> None:
    (attention,) = steps_of(Attention(), torch.randn(1, heads, queries, 16), kernel="attention")
    assert attention.items == items
