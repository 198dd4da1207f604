"""Vertices of ranks, searches, histograms and masks where sizes are odd, elements equal, or nothing is known before."""

from __future__ import annotations

import pytest
import torch

from tests.device.tilings.calls import judge_call
from tests.ops.cases.drawing import call

aten = torch.ops.aten
EQUAL = torch.tensor([[3, 1, 3, 1, 3, 2, 2], [0, 0, 0, 0, 0, 0, 0], [5, 4, 3, 2, 1, 0, -1]])
NAN = torch.tensor([[1.0, torch.nan, 0.5], [torch.nan, torch.nan, torch.nan], [2.0, 3.0, -torch.inf]])


@pytest.mark.parametrize("one", [
    call("mode.default", EQUAL, 1), call("median.dim", EQUAL, 0), call("kthvalue.default", torch.randn(3, 7), 7, 1),
    call("median.dim", NAN, 1), call("nanmedian.dim", NAN[::2], 1), call("nanmedian.default", NAN),
    call("sort.default", torch.randn(5, 1), 1), call("topk.default", torch.randn(5, 1), 1, -1),
    call("histc.default", torch.randn(777), 9), call("histc.default", torch.randn(1), 3, -4, 4),
    call("searchsorted.Tensor", torch.randn(2, 3, 5).sort(-1).values, torch.randn(2, 3, 11)),
    call("searchsorted.Tensor", torch.randn(3, 5), torch.randn(3, 4), sorter=torch.randn(3, 5).argsort(-1)),
    call("bucketize.Tensor", torch.arange(9), torch.tensor([3, 5])),
    call("masked_scatter.default", torch.randn(4, 9), torch.ones((), dtype=torch.bool), torch.randn(36)),
    call("masked_scatter.default", torch.randn(4, 9), torch.zeros(9, dtype=torch.bool), torch.randn(1)),
    call("masked_scatter.default", torch.randn(33), torch.randn(33) > 0, torch.randn(40)),
    call("nonzero_static.default", torch.zeros(4, 3), size=5), call("nonzero_static.default", torch.ones(4, 3), size=5),
])
@pytest.mark.parametrize("tiles", [1, 4, 1472])
def test_calls(one: object, tiles: int) -> None:
    assert judge_call(one, tiles) == "tiled"  # type: ignore[arg-type]
