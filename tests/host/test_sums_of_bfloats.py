"""Sums of what a caller brings as bfloats, which reductions take as they lie; against eager PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.host.planned import planned_kernels

CASES = [
    ((1000, 512), (0,)), ((300, 131), (0,)), ((10, 100, 512), (1,)), ((16, 32, 1000), (0, 2)), ((7, 5000), (1,)),
    ((40, 7), (0,)), ((33, 17), (1,)), ((5, 3, 4000), (2,)), ((100_000,), (0,)), ((9, 65), (0, 1)), ((4, 1, 3), (0,)),
]
"""Shapes, and the dimensions that are summed over."""
FORMS: dict[str, Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]] = {
    "sum": lambda x, dims: x.sum(dims), "mean": lambda x, dims: x.mean(dims),
    "sum of what is computed": lambda x, dims: (x * 2).sum(dims),
    "sum of a transpose": lambda x, dims: x.transpose(0, -1).sum(dims[0]),
}


@pytest.mark.filterwarnings("ignore:torchipu. torch.bfloat16")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("shape", "dims"), CASES, ids=str)
def test_sums(shape: tuple[int, ...], dims: tuple[int, ...], form: str) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()
    torch._dynamo.reset()
    found = torch.compile(FORMS[form], backend="ipu")(x, dims)
    wanted = FORMS[form](x.double(), dims)
    assert found.dtype is torch.bfloat16
    # Of numbers near 1 as many as there are lose no more than a bfloat of their sum does.
    torch.testing.assert_close(found.double(), wanted, rtol=1e-2, atol=1e-2 * max(1.0, x.numel() ** 0.5 / 100))


@pytest.mark.filterwarnings("ignore:torchipu. torch.bfloat16")
@pytest.mark.parametrize("dim", [0, 1])
def test_no_floats_are_made_of_them(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = planned_kernels(monkeypatch)
    torch._dynamo.reset()
    torch.compile(lambda x: x.sum(dim), backend="ipu")(torch.randn(200, 300).bfloat16())
    assert kernels[0] == ("reduce_columns" if dim == 0 else "reduce_rows")
