"""Rows that are looked up, multiplied and summed in one go: values beside float64, steps, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchipu.errors import ExecutionError
from torchipu.host.planner import Planner

NODES, EDGES = 50, 300
Function = Callable[..., torch.Tensor]


def weighted(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * weight[:, None])


def in_heads(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x.view(NODES, 4, -1)
    factor = torch.stack([weight, weight + 1, weight * 2, weight.sin()], 1)
    return torch.zeros_like(rows).index_add(0, edges[1], factor[..., None] * rows[edges[0]])


def of_all_edges(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, edges[1], x.index_select(0, edges[0]) * weight[:1], alpha=0.5)


def of_heads_alike(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x.view(NODES, 4, -1)
    return rows.index_add(0, edges[1], rows[edges[0]] * weight[:4, None])


def unweighted(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x * weight[0]).index_add(0, edges[1], torch.nn.functional.embedding(edges[0], x))


def carried(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    carried = x.repeat(6, 1)
    return x.index_put((edges[1],), carried * weight[:, None], accumulate=True)


def from_the_end(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.index_put((edges[1] - NODES,), x[edges[0] - NODES] * weight[:, None], accumulate=True)


def strided_factors(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    pairs = torch.stack([weight, weight.cos()], 1)
    return x.index_add(0, edges[1], x[edges[0]] * pairs[:, 1:])


def factors_in_columns(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x.view(NODES, 4, -1)
    factor = torch.stack([weight, weight + 1, weight * 2, weight.sin()])
    return rows.index_add(0, edges[1], rows[edges[0]] * factor.t()[..., None])


FUSED: list[Function] = [
    weighted, in_heads, of_all_edges, of_heads_alike, unweighted, carried, from_the_end, strided_factors,
    factors_in_columns,
]


def read_twice(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x[edges[0]] * weight[:, None]
    return x.index_add(0, edges[1], rows) + rows.sum()


def factors_of_elements(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, edges[1], x[edges[0]] * (weight[:, None] + x[0]))


def factors_of_columns(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, edges[1], x[edges[0]] * x[0])


def squares(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x[edges[0]]
    return x.index_add(0, edges[1], rows * rows)


def the_last_put_wins(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.index_put((torch.arange(NODES),), x[edges[0, :NODES]] * weight[:NODES, None])


def columns(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.t().index_add(1, edges[1], x.t()[:, edges[0]] * weight)


def into_other_rows(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x[:, :8].index_add(0, edges[1], x.view(NODES, 4, -1)[edges[0]].amax(1)[:, :8] * weight[:, None])


APART: list[Function] = [read_twice, factors_of_elements, squares, the_last_put_wins, columns]


def inputs(width: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(width)
    edges = torch.randint(0, NODES - 3, (2, EDGES), generator=generator)  # some nodes have no edge
    return torch.randn(NODES, width, generator=generator), edges, torch.randn(EDGES, generator=generator)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels of all plans that are made."""
    names: list[str] = []
    collect = Planner._collect_outputs

    def collected(planner: Planner) -> object:
        names.extend(step.kernel.name for step in planner.steps if step.kernel is not None)
        return collect(planner)

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
    return names


def compared(function: Function, width: int = 32, threads: int = 2) -> torch.Tensor:
    torch._dynamo.reset()
    x, edges, weight = inputs(width)
    found = torch.compile(function, backend="ipu", fullgraph=True, options={"host_threads": threads})(x, edges, weight)
    torch.testing.assert_close(
        found.double(), function(x.double(), edges, weight.double()), rtol=1e-5, atol=1e-5,
    )
    return found


@pytest.mark.parametrize("function", FUSED)
def test_sums_are_those_of_float64_and_what_edges_carry_lies_nowhere(function: Function, kernels: list[str]) -> None:
    compared(function)
    assert "sum_taken_rows" in kernels
    assert "sum_rows" not in kernels
    if function is not carried:
        assert "take_rows" not in kernels


@pytest.mark.parametrize("function", [*APART, factors_of_columns, into_other_rows])
def test_other_sums_are_those_of_float64(function: Function, kernels: list[str]) -> None:
    compared(function)
    assert ("sum_taken_rows" in kernels) is (function is into_other_rows)


@pytest.mark.parametrize("function", [weighted, in_heads])
@pytest.mark.parametrize("width", [4, 8, 20, 100, 260])
def test_rows_of_any_width_have_the_same_bits_on_any_number_of_threads(function: Function, width: int) -> None:
    alone, *others = (compared(function, width, threads) for threads in (1, 2, 3))
    assert all(torch.equal(alone, other) for other in others)


@pytest.mark.parametrize("function", FUSED)
def test_gradients_are_those_of_float64(function: Function) -> None:
    torch._dynamo.reset()
    x, edges, weight = inputs()
    mine, exact = ([value.requires_grad_() for value in pair] for pair in (
        (x.clone(), weight.clone()), (x.double(), weight.double()),
    ))
    torch.compile(function, backend="ipu", fullgraph=True)(mine[0], edges, mine[1]).sin().sum().backward()
    function(exact[0], edges, exact[1]).sin().sum().backward()
    for found, wanted in zip(mine, exact, strict=True):
        if wanted.grad is None:
            assert found.grad is None
            continue
        torch.testing.assert_close(found.grad.double(), wanted.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("row", "name"), [(0, r"aten.index.Tensor"), (1, r"aten.index_add.default")])
@pytest.mark.parametrize("wrong", [NODES, -NODES - 1])
def test_an_index_that_a_table_has_not_is_the_fault_of_the_op_that_has_it(row: int, name: str, wrong: int) -> None:
    torch._dynamo.reset()
    x, edges, weight = inputs()
    edges[row, 17] = wrong
    run = torch.compile(weighted, backend="ipu", fullgraph=True)
    with pytest.raises(ExecutionError, match=name):
        run(x, edges, weight)
    edges[row, 17] = 3
    torch.testing.assert_close(run(x, edges, weight), weighted(x, edges, weight), rtol=1e-5, atol=1e-5)
