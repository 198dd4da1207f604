"""Chains that reduce what they compute as it comes, against eager in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.host.planned import planned_kernels

Function = Callable[..., Tensor]
CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "rows of products": (lambda a, b: (a * b).sum(-1), ((100, 64), (100, 64))),
    "odd rows": (lambda a, b: (a - b).pow(2).sum(-1), ((333, 65), (333, 65))),
    "few in a row": (lambda a, b: (a * b).sum(-1), ((1001, 3), (3,))),
    "nine in a row": (lambda a, b: (a * b + a).mean(-1), ((77, 9), (77, 1))),
    "one row": (lambda a, b: (a * b).sum(), ((3001, 37), (3001, 37))),
    "long rows": (lambda a, b: (a * b).sum(-1), ((3, 70_001), (3, 70_001))),
    "rows longer than a block": (lambda a, b: (a * b).exp().sum(-1), ((40, 1500), (40, 1500))),
    "repeated rows": (lambda a, b: (a * b).sum(-1), ((10, 30, 200), (10, 1, 200))),
    "repeated numbers": (lambda a, b: (a * b).sum(-1), ((10, 30, 200), (10, 30, 1))),
    "a number for all": (lambda a, b: (a * b).sum(-1), ((50, 40), ())),
    "images": (lambda a, b: (a * b).mean((2, 3)), ((8, 16, 9, 9), (8, 16, 1, 1))),
    "weighted": (lambda w, v: (w.unsqueeze(-1) * v).sum(1), ((8, 50), (8, 50, 64))),
    "odd columns": (lambda w, v: (w.unsqueeze(-1) * v).sum(1), ((8, 50), (8, 50, 37))),
    "few columns": (lambda a, b: (a * b).sum(0), ((3000, 10), (3000, 10))),
    "few columns of stacks": (lambda a, b: (a - b).abs().sum(1), ((5, 300, 9), (5, 300, 9))),
    "wide columns": (lambda a, b: (a * b).sum(0), ((70, 3001), (3001,))),
    "tall columns": (lambda a, b: (a * b).mean(0), ((5000, 130), (5000, 1))),
    "largest": (lambda a, b: (a * b).amax(-1), ((30, 300), (30, 300))),
    "least": (lambda a, b: (a + b).amin(1), ((30, 40, 70), (30, 1, 70))),
    "norm": (lambda a, b: (a - b).norm(dim=-1), ((100, 130), (130,))),
    "largest magnitude": (lambda a, b: torch.linalg.vector_norm(a - b, torch.inf, -1), ((100, 130), (130,))),
    "magnitudes": (lambda a, b: torch.linalg.vector_norm(a - b, 1, -1), ((100, 7), (7,))),
    "product": (lambda a, b: (1 + 0.01 * a * b).prod(), ((40, 30), (40, 30))),
    "seen as another shape": (lambda a, b: (a * b).view(-1, 4, 16).sum(-1), ((100, 64), (100, 64))),
    "transposed": (lambda a, b: (a * b).transpose(0, 1).sum(0), ((100, 64), (100, 64))),
    "of several dims": (lambda a, b: (a * b).sum((0, 1)), ((20, 30, 41), (20, 1, 41))),
    "kept dims": (lambda a, b: (a * b).sum(-1, keepdim=True), ((20, 30, 41), (20, 1, 41))),
    "additive attention": (
        lambda q, k, a: (torch.nn.functional.leaky_relu(q.unsqueeze(2) + k.unsqueeze(1)) * a).sum(-1),
        ((2, 19, 24), (2, 17, 24), (24,)),
    ),
}


def operands(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return numbers of the normal distribution."""
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def compiled(function: Function, threads: int = 1) -> Function:
    """Return the function as the backend compiles it."""
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", options={"host_threads": threads}, dynamic=False)


@pytest.mark.parametrize("name", CASES)
def test_equals_float64_on_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shapes = CASES[name]
    inputs, kernels = operands(shapes), planned_kernels(monkeypatch)
    expected = function(*(each.double() for each in inputs))
    result = compiled(function)(*inputs)
    assert "chain_fold" in kernels
    assert "chain" not in kernels
    size = expected.abs().max().item()
    torch.testing.assert_close(result.double(), expected, rtol=2e-6, atol=1e-6 * max(1.0, size))
    assert torch.equal(compiled(function, 2)(*inputs), result)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["odd rows", "few in a row", "weighted", "few columns", "largest", "norm", "images"])
def test_equals_float64_in_half_precision(name: str, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    inputs = operands(shapes, dtype)
    expected = function(*(each.double() for each in inputs))
    result = compiled(function)(*inputs)
    assert result.dtype is dtype
    eager_error = (function(*inputs).double() - expected).abs().max().item()
    error = (result.double() - expected).abs().max().item()
    assert error <= 1.5 * eager_error + 1e-3


@pytest.mark.parametrize("name", ["odd rows", "weighted", "few columns", "additive attention", "norm", "repeated rows"])
def test_gradients_equal_float64(name: str) -> None:
    function, shapes = CASES[name]
    inputs = [each.requires_grad_() for each in operands(shapes)]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    weights = torch.randn_like(function(*inputs))
    (function(*exact) * weights.double()).sum().backward()
    (compiled(function)(*inputs) * weights).sum().backward()
    for ours, theirs in zip(inputs, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5)


def test_numbers_that_are_none_come_through() -> None:
    a, b = operands(((40, 100), (40, 100)))
    a[3, 70], a[5, 2], a[6, 99], a[7, 1] = torch.nan, torch.inf, -torch.inf, torch.nan
    for function in (lambda a, b: (a + b).amax(-1), lambda a, b: (a * b).sum(-1), lambda a, b: (a - b).amin(-1)):
        torch.testing.assert_close(compiled(function)(a, b), function(a, b), equal_nan=True)


def test_a_value_that_others_read_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        product = a * b
        return product, product.sum(-1)

    a, b = operands(((60, 50), (60, 50)))
    kernels = planned_kernels(monkeypatch)
    product, total = compiled(function)(a, b)
    assert "chain_fold" not in kernels
    assert torch.equal(product, a * b)
    torch.testing.assert_close(total.double(), (a.double() * b.double()).sum(-1), rtol=1e-5, atol=1e-5)


def test_other_results_of_a_chain_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        kept = a.relu()
        return kept, (kept * b).sum(-1)

    a, b = operands(((60, 50), (60, 50)))
    kernels = planned_kernels(monkeypatch)
    kept, total = compiled(function)(a, b)
    assert kernels == ["chain_fold"]
    assert torch.equal(kept, a.relu())
    torch.testing.assert_close(total.double(), (a.relu().double() * b.double()).sum(-1), rtol=1e-5, atol=1e-5)


def test_what_is_written_meanwhile_is_read_before() -> None:
    def function(state: Tensor, b: Tensor) -> Tensor:
        product = state * b
        state.add_(1.0)
        return product.sum(-1) + state.sum(-1)

    state, b = operands(((60, 50), (60, 50)))
    exact = state.double()
    expected = (exact * b.double()).sum(-1) + (exact + 1).sum(-1)
    torch.testing.assert_close(compiled(function)(state, b).double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state.double(), exact + 1, rtol=1e-6, atol=1e-6)
