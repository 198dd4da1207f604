"""Rows that are looked up, concatenated and read by others: values and gradients against float64, and no copy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.host.planned import planned_kernels
from torchipu.errors import ExecutionError

Function = Callable[..., torch.Tensor]


def attention(h: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Messages whose weights follow from both ends of an edge."""
    begin, end = h[edges[0]], h[edges[1]]
    score = (torch.cat([begin, end], -1) * weight).sum(-1, keepdim=True).sigmoid()
    return torch.zeros_like(h).index_add(0, edges[1], begin * score)


FUNCTIONS: dict[str, Function] = {
    "attention along edges": attention,
    "a result of its own": lambda h, edges, weight: torch.cat(
        [(torch.cat([r := h[edges[0]], h[edges[1]]], -1) * weight).T, r.T],
    ),
    "twice in one": lambda h, edges, weight: torch.cat([r := h[edges[0]], r], -1) * weight + r.sum(),
    "in two": lambda h, edges, weight: (
        torch.cat([r := h[edges[0]], h[edges[1]]], -1) * torch.cat([h[edges[1]], r * 2], -1) * weight
    ),
    "embedded": lambda h, edges, weight: (
        torch.cat([r := torch.nn.functional.embedding(edges[0], h), h[edges[1]]], -1) @ weight + (r * r).sum(-1)
    ),
}


def drawn(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    h, weight = torch.randn(30, 24), torch.randn(48)
    return h.to(dtype).requires_grad_(), torch.randint(0, 30, (2, 200)), weight.to(dtype).requires_grad_()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels of all plans that are made."""
    return planned_kernels(monkeypatch)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_float64(name: str) -> None:
    function, given, exact = FUNCTIONS[name], drawn(), drawn(torch.float64)
    found, right = torch.compile(function, backend="ipu")(*given), function(*exact)
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)
    found.square().sum().backward()
    right.square().sum().backward()
    for mine, other in zip(given[::2], exact[::2], strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert (mine.grad.double() - other.grad).abs().max() <= 1e-5 * other.grad.abs().max()


def test_attention_along_edges_copies_no_rows(kernels: list[str]) -> None:
    with torch.no_grad():
        torch.compile(attention, backend="ipu")(*drawn())
    assert kernels.count("take_rows") == 2
    assert "sum_taken_rows" in kernels
    assert "copy" not in kernels


def test_an_index_out_of_range_is_told() -> None:
    h, edges, weight = drawn()
    edges[0, 3] = 30
    with pytest.raises(ExecutionError, match=r"(?s)index is out of range.*begin, end = h"), torch.no_grad():
        torch.compile(attention, backend="ipu")(h, edges, weight)
