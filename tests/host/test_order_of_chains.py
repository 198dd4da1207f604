"""Elementwise ops go through elements in the order in which their outputs are expected, and transpose nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.host.planned import planned_kernels

CALLS: dict[str, Callable[..., object]] = {
    "one op": lambda x, y, row: x.transpose(-1, -2) + 1,
    "several": lambda x, y, row: torch.relu(x.mT * 2 - y.mT).sigmoid(),
    "a row to all": lambda x, y, row: x.mT * row[:, None] + 3,
    "a column to all": lambda x, y, row: x.mT.add(torch.arange(x.shape[1]).float()),
    "two results": lambda x, y, row: (x.mT + 1, (x.mT > y.mT).float() * 2),
    "another type": lambda x, y, row: (x.mT * 10).long(),
    "booleans": lambda x, y, row: x.mT > y.mT,
    "orders that differ": lambda x, y, row: (x.mT + 1, y.contiguous() * 2),
    "one more reader": lambda x, y, row: ((x.mT + 1), (x.mT + 1).sum(-1)),
    "an op of its own between": lambda x, y, row: torch.relu(torch.rot90(x, 1, (-2, -1))),
    "strided": lambda x, y, row: x[:, ::2].mT * y[:, ::2].mT,
}


def _strides(made: torch.Tensor) -> list[int]:
    """Of dimensions of more than one element, where alone they mean something."""
    return [stride for size, stride in zip(made.shape, made.stride(), strict=True) if size > 1]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("sizes", [(2, 5, 7), (1, 33, 16), (3, 1, 4)])
def test_results_lie_as_those_of_eager_pytorch(call: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(sizes, generator=generator).to(dtype) for _ in range(2))
    x.view(-1)[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    row = torch.randn(sizes[-1], generator=generator).to(dtype)
    function = CALLS[call]
    torch._dynamo.reset()
    with torch.no_grad():
        results, wanted = torch.compile(function, backend="ipu", fullgraph=True)(x, y, row), function(x, y, row)
    ours, eager = ((made if isinstance(made, tuple) else (made,)) for made in (results, wanted))
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
        assert _strides(mine) == _strides(theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("call", ["one op", "a row to all", "booleans", "an op of its own between", "strided"])
def test_results_that_are_converted_lie_so_too(call: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planned_kernels(monkeypatch)
    x, y = torch.randn(2, 2, 33, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    row = torch.randn(16, generator=torch.Generator().manual_seed(3)).to(dtype)
    torch._dynamo.reset()
    with torch.no_grad():
        mine, wanted = torch.compile(CALLS[call], backend="ipu", fullgraph=True)(x, y, row), CALLS[call](x, y, row)
    torch.testing.assert_close(mine, wanted, rtol=2e-2, atol=2e-2)
    assert mine.dtype is wanted.dtype
    assert _strides(mine) == _strides(wanted)
    assert call == "an op of its own between" or "transpose" not in names


@pytest.mark.parametrize("call", ["one op", "several", "a row to all", "two results"])
def test_nothing_is_transposed(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planned_kernels(monkeypatch)
    x, y, row = torch.randn(2, 5, 7), torch.randn(2, 5, 7), torch.randn(7)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(CALLS[call], backend="ipu", fullgraph=True)(x, y, row)
    assert set(names) == {"chain"}


def test_channels_last_stay_last(monkeypatch: pytest.MonkeyPatch) -> None:
    names = planned_kernels(monkeypatch)
    x = torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last).requires_grad_()
    function = lambda x: torch.nn.functional.gelu(x * 2) + x  # noqa: E731
    torch._dynamo.reset()
    result, wanted = torch.compile(function, backend="ipu", fullgraph=True)(x), function(x.double())
    assert names[:1] == ["chain"]
    assert "transpose" not in names
    (gradient,) = torch.autograd.grad(result.square().sum(), x)
    (exact,) = torch.autograd.grad(wanted.square().sum(), x)
    torch.testing.assert_close(result, wanted.float())
    torch.testing.assert_close(gradient, exact.float(), rtol=1e-5, atol=1e-5)
    assert result.stride() == gradient.stride() == x.stride()
