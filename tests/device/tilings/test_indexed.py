"""Vertices of ops of indices, against the ops themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from tests.device.tilings.judged import judge
from tests.device.tilings.test_moves import served

X = torch.Tensor
SGD = partial(torch.optim.SGD, lr=0.1)


class Calls(torch.nn.Module):
    """A function of a weight, with an input added to it, and of indices."""

    def __init__(self, function: Callable[..., X], *shape: int) -> None:
        super().__init__()
        self.function, self.weight = function, torch.nn.Parameter(torch.randn(*shape))

    def forward(self, x: X, *index: X) -> X:
        y = self.function(self.weight + x, *index)
        return (y * y).sum()


def numbers(below: int, *shape: int, at_least: int = 0) -> X:
    """Return indices."""
    return torch.randint(at_least, below, shape)


CASES: list[tuple[str, Callable[..., X], tuple[int, ...], tuple[X, ...]]] = [
    ("index_select index_add", lambda x, i: x.index_select(1, i), (3, 17, 5), (numbers(17, 11),)),
    ("index_select index_add", lambda x, i: x.index_select(-1, i), (900,), (numbers(900, 700),)),
    ("gather scatter_add", lambda x, i: x.gather(1, i), (3, 17, 5), (numbers(17, 2, 40, 4),)),
    ("gather scatter_add", lambda x, i: x.gather(-1, i), (4, 300), (numbers(300, 4, 200),)),
    ("index.Tensor index_put", lambda x, i: x[:, i], (3, 17, 5), (numbers(17, 4, 3, at_least=-17),)),
    ("index.Tensor index_put", lambda x, i, j: x[i, :, j], (6, 3, 9), (numbers(6, 4, 1), numbers(9, 5))),
    ("index.Tensor index_put", lambda x, i, j: x[:, i, j], (2, 6, 9, 3),
     (numbers(6, 4, 1), numbers(9, 5, at_least=-9))),
    ("index.Tensor index_put", lambda x, i: x[i], (40,), (numbers(40, 7, 9, at_least=-40),)),
    ("take put", lambda x, i: x.take(i), (6, 9), (numbers(54, 7, 5, at_least=-54),)),
    ("scatter_add", lambda x, i: x.scatter_add(0, i, 2 * x.detach()), (9, 7), (numbers(9, 5, 6),)),
    ("scatter_add", lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 7), 2 * x.detach()[:300]), (400, 7),
     (numbers(400, 300),)),
    ("scatter.src", lambda x, i: x.scatter(1, i.argsort(1), 2 * x), (9, 7), (numbers(99, 9, 7),)),
    ("scatter.value", lambda x, i: x.scatter(1, i, 2.5), (9, 7), (numbers(7, 9, 4),)),
    ("scatter_reduce.two", lambda x, i: x.detach().scatter_reduce(1, i, 2 * x.detach(), "amax") + x, (4, 70),
     (numbers(70, 4, 65),)),
    ("scatter_reduce.two", lambda x, i: x.detach().scatter_reduce(0, i, x.detach().repeat(8), "sum") + x, (60,),
     (numbers(60, 480),)),
    ("scatter_reduce.two", lambda x, i: x.detach().scatter_reduce(0, i, x.detach(), "sum", include_self=False) + x,
     (70, 4), (numbers(70, 65, 3),)),
    ("scatter.reduce", lambda x, i: x.detach().scatter(0, i, x.detach(), reduce="add") + x, (70, 4),
     (numbers(70, 65, 3),)),
    ("index_add", lambda x, i: x.index_add(0, i, 2 * x[:5], alpha=0.5), (70, 9), (numbers(70, 5),)),
    ("index_copy", lambda x, i: x.index_copy(1, i.argsort(), 2 * x[:, :5]), (7, 9), (numbers(70, 5),)),
    ("index_fill.int_Scalar", lambda x, i: x.index_fill(0, i, 2.0), (70, 9), (numbers(70, 5, at_least=-70),)),
    ("index_put", lambda x, i: x.index_put((i,), x[0], accumulate=True), (70, 9), (numbers(70, 50),)),
    ("index_put", lambda x, i: x.index_put((i,), x[0, 0]), (70, 9), (numbers(70, 50),)),
    ("index_add", lambda x, i: x.index_add(1, i, x[:, :0].detach()), (70, 9), (numbers(70, 0),)),
    ("scatter_reduce.two", lambda x, i: x.detach().scatter_reduce(0, i, x.detach(), "mean", include_self=False) + x,
     (70, 4), (numbers(70, 65, 3),)),
    ("scatter.reduce", lambda x, i: x.detach().scatter(0, i, x.detach(), reduce="multiply") + x, (7,),
     (numbers(7, 3),)),
    ("index_reduce", lambda x, i: x.detach().index_reduce(1, i, x.detach(), "prod") + x, (7, 5), (numbers(5, 5),)),
    ("index_fill.int_Tensor", lambda x, i: x.index_fill(0, i, x[0, 0].detach()), (7, 5), (numbers(7, 2),)),
]


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("names", "function", "shape", "index"), CASES)
def test_access_by_index(
    names: str, function: Callable[..., X], shape: tuple[int, ...], index: tuple[X, ...], dtype: torch.dtype,
) -> None:
    given = tuple(i[None] for i in index)
    module = Calls(lambda x, *i: function(x, *(j[0] for j in i)), *shape).to(dtype)
    machine = judge(module, torch.randn(1, *shape[1:], dtype=dtype), *given, optimizer=SGD)
    served(machine, *(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names.split()))


@pytest.mark.parametrize("add", [
    lambda x, i, y: x.scatter_reduce(0, i, y, "sum"), lambda x, i, y: x.scatter(0, i, y, reduce="add"),
    lambda x, i, y: x.scatter_add(0, i, y), lambda x, i, y: x.index_put((i,), y, accumulate=True),
])
def test_more_elements_are_added_than_a_tile_holds(add: Callable[..., X]) -> None:
    torch.manual_seed(0)
    x, index, source = torch.randn(10_000), numbers(10_000, 1 << 17), torch.randn(1 << 17)
    torch.testing.assert_close(
        torch.compile(add, backend="ipu")(x, index, source).double(), add(x.double(), index, source.double()),
        rtol=1e-5, atol=1e-5,
    )


class Embeds(torch.nn.Module):
    """Rows of a table, summed."""

    def __init__(self, rows: int, width: int, **arguments: object) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(rows, width, **arguments)

    def forward(self, index: X) -> X:
        y = self.table(index)
        return (y * y).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "width", "index"), [
    (50, 12, (4, 7)), (900, 3, (2, 30)), (5, 33, (1, 1)), (1, 1, (3, 1))
])
@pytest.mark.parametrize("scaled", [False, True])
def test_embedding(rows: int, width: int, index: tuple[int, ...], scaled: bool, dtype: torch.dtype) -> None:
    module = Embeds(rows, width, padding_idx=rows // 2, scale_grad_by_freq=scaled).to(dtype)
    machine = judge(module, torch.randint(0, rows, index), optimizer=SGD)
    served(machine, "aten.embedding.default", "aten.embedding_dense_backward.default")


class Keeps(torch.nn.Module):
    """A table that rows are added to where they lie."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(rows, width))

    def forward(self, x: X, index: X) -> X:
        self.table.index_add_(0, index[0], x[0], alpha=-0.5)
        return x + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "width", "count"), [(900, 6, 5), (16, 8, 900), (3, 1, 1)])
def test_rows_of_states_are_written_where_they_lie(rows: int, width: int, count: int, dtype: torch.dtype) -> None:
    module = Keeps(rows, width).to(dtype)
    machine = judge(module, torch.randn(1, count, width, dtype=dtype), numbers(rows, 1, count))
    served(machine, "aten.index_add.default")
