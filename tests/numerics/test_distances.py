"""Distances of all pairs and their gradients, without the differences: as in eager PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.host.planned import planned_kernels, planned_steps

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "pdist": lambda x, y: F.pdist(x),
    "pdist of magnitudes": lambda x, y: F.pdist(x, 1),
    "largest of pdist": lambda x, y: F.pdist(x, float("inf")),
    "cdist": lambda x, y: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"),
    "cdist of magnitudes": lambda x, y: torch.cdist(x, y, p=1),
    "largest of cdist": lambda x, y: torch.cdist(x, y, p=float("inf")),
    "batches": lambda x, y: torch.cdist(x[:6].view(2, 3, -1), y[:4].view(2, 2, -1), p=1),
    "by hand": lambda x, y: (x[:, None] - y).norm(dim=-1),
    "by hand, kept": lambda x, y: torch.linalg.vector_norm(x[:, None] - y[None], 1, -1, keepdim=True),
    "weighted by hand": lambda x, y: ((x[:, None] - y[None]) * (x @ y.t()).softmax(1)[..., None]).sum(1),
    "the other way": lambda x, y: (y[None] - x[:, None]).norm(dim=-1),
    "a power": lambda x, y: torch.cdist(x, y, p=3),
    "not of one dimension": lambda x, y: (x[:, None] - y[None]).norm(dim=(1, 2)),
}
SERVED = {"pdist", "cdist", "cdist of magnitudes", "largest of cdist", "batches", "by hand", "by hand, kept"}


def _inputs(rows: int, others: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * length)
    return tuple(torch.randn(count, length, generator=generator) for count in (rows, others))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("sizes", [(6, 4, 2), (17, 33, 7), (35, 16, 64), (9, 5, 131), (70, 3, 16)], ids=str)
def test_values_and_gradients_are_those_of_float64(name: str, sizes: tuple[int, int, int]) -> None:
    torch._dynamo.reset()
    function = CALLS[name]
    given = [value.requires_grad_() for value in _inputs(*sizes)]
    exact = [value.detach().double().requires_grad_() for value in given]
    made, wanted = torch.compile(function, backend="ipu", fullgraph=True)(*given), function(*exact)
    torch.testing.assert_close(made.double(), wanted, rtol=2e-6, atol=2e-6)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    mine = torch.autograd.grad(made, given, weights, allow_unused=True)
    theirs = torch.autograd.grad(wanted, exact, weights.double(), allow_unused=True)
    for ours, true in zip(mine, theirs, strict=True):
        if true is not None:
            torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(SERVED))
def test_differences_are_not_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    names = planned_kernels(monkeypatch)
    torch.compile(CALLS[name], backend="ipu", fullgraph=True)(*_inputs(35, 16, 24))
    assert "pair_norms" in names
    assert "reduce_rows" not in names


def test_gradients_are_summed_without_storing_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    for p in (1.0, 2.0):
        torch._dynamo.reset()
        names = planned_kernels(monkeypatch)
        x = _inputs(35, 16, 24)[0].requires_grad_()
        torch.compile(lambda x, p=p: F.pdist(x, p), backend="ipu", fullgraph=True)(x).sum().backward()
        assert "pair_sums" in names


def test_what_is_not_finite_is_that_of_eager_pytorch() -> None:
    x, y = _inputs(20, 18, 24)
    x[3, 5], x[4, 0], y[7, 2], y[8, 2], x[9, 2] = torch.nan, torch.inf, torch.inf, -torch.inf, torch.inf
    x[11] = y[11]
    for order in (1, 2, float("inf")):
        def norms(x: torch.Tensor, y: torch.Tensor, order: float = order) -> torch.Tensor:
            return torch.linalg.vector_norm(x[:, None] - y[None], order, -1)

        torch._dynamo.reset()
        made = torch.compile(norms, backend="ipu", fullgraph=True)(x, y)
        torch.testing.assert_close(made, norms(x, y), rtol=2e-6, atol=2e-6, equal_nan=True)


def test_small_distances_of_large_values_keep_their_digits() -> None:
    x, _ = _inputs(40, 1, 32)
    x = 1000 + x * 2**-10
    torch._dynamo.reset()
    given, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    made, wanted = torch.compile(F.pdist, backend="ipu")(given), F.pdist(exact)
    torch.testing.assert_close(made.double(), wanted, rtol=2e-6, atol=0)
    (mine,), (theirs,) = torch.autograd.grad(made.sum(), given), torch.autograd.grad(wanted.sum(), exact)
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    x, y = _inputs(300, 290, 40)
    results = []
    for threads in (1, 3):
        torch._dynamo.reset()
        given = x.clone().requires_grad_()
        made = torch.compile(CALLS["by hand"], backend="ipu", options={"host_threads": threads})(given, y)
        made.sum().backward()
        results.append((made, given.grad))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_eight_threads_share_two_million_differences_and_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = planned_steps(monkeypatch)
    torch._dynamo.reset()
    x, y = _inputs(128, 256, 64)
    torch.compile(CALLS["cdist of magnitudes"], backend="ipu", fullgraph=True)(x.requires_grad_(), y).sum().backward()
    shares = {
        step.kernel.name: -(-step.items // step.grain) for step in steps
        if step.kernel is not None and step.kernel.name.startswith("pair_")
    }
    assert shares == {"pair_norms": 8, "pair_sums": 8}


def test_pairs_of_a_single_row_are_not_stored_either(monkeypatch: pytest.MonkeyPatch) -> None:
    names = planned_kernels(monkeypatch)
    for rows, others in ((1, 16), (35, 1)):
        torch._dynamo.reset()
        given = _inputs(rows, others, 24)
        exact = [value.double() for value in given]
        made = torch.compile(CALLS["by hand"], backend="ipu", fullgraph=True)(*given)
        torch.testing.assert_close(made.double(), CALLS["by hand"](*exact), rtol=2e-6, atol=2e-6)
    assert names.count("pair_norms") == 2


@pytest.mark.parametrize(("rows", "others"), [(0, 5), (5, 0), (0, 0)])
def test_of_no_rows_there_are_no_distances(rows: int, others: int) -> None:
    torch._dynamo.reset()
    given = [value.requires_grad_() for value in _inputs(rows, others, 6)]
    made = torch.compile(CALLS["by hand"], backend="ipu", fullgraph=True)(*given)
    assert made.shape == (rows, others)
    for value, gradient in zip(given, torch.autograd.grad(made.sum(), given), strict=True):
        assert torch.equal(gradient, torch.zeros_like(value))
