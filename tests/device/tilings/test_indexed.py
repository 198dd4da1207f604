"""Vertices of ops of indices, against the ops themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

import torchipu
from tests.device.tilings.judged import Judged, judge
from tests.device.tilings.simulated import groups_of
from tests.device.tilings.test_moves import served
from torchipu.device.codelets import SUM_OF_TABLES

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


class Writes(torch.nn.Module):
    """A function of a tensor, of indices and of what is written where they say."""

    def __init__(self, write: Callable[..., X]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: X, index: X, source: X) -> X:
        return self.write(x[0], index[0], source[0])


def values(dtype: torch.dtype, *shape: int) -> X:
    """Return numbers of both signs, whose products neither grow nor vanish where they are real."""
    if not dtype.is_floating_point:
        return torch.randint(-5, 6, shape, dtype=dtype)
    return ((0.7 + 0.6 * torch.rand(shape)) * (1 - 2 * torch.randint(2, shape))).to(dtype)


def reduced(reduce: str, has_old: bool) -> list[tuple[str, Callable[..., X], bool]]:
    """Return the ops that join elements by a name, with their targets, and whether all lines share the index."""
    return [
        ("scatter_reduce.two", lambda x, i, y: x.scatter_reduce(1, i, y, reduce, include_self=has_old), False),
        ("index_reduce.default", lambda x, i, y: x.index_reduce(1, i, y, reduce, include_self=has_old), True),
    ]


WRITES: list[tuple[str, Callable[..., X], bool]] = [
    *(one for reduce in ("prod", "amax", "amin", "mean") for old in (True, False) for one in reduced(reduce, old)),
    *(reduced("sum", old)[0] for old in (True, False)),
    ("scatter_add.default", lambda x, i, y: x.scatter_add(1, i, y), False),
    ("scatter_add.default", lambda x, i, y: x.scatter_add(1, i[:1].expand(3, -1), y), False),
    ("index_add.default", lambda x, i, y: x.index_add(1, i, y, alpha=3), True),
    ("index_put.default", lambda x, i, y: x.index_put((i % 3, i - 20), y[0], accumulate=True), True),
    ("put.default", lambda x, i, y: x.put(i, y[0], accumulate=True), True),
    ("scatter.reduce", lambda x, i, y: x.scatter(1, i, y, reduce="multiply"), False),
    ("scatter.value_reduce", lambda x, i, y: x.scatter(1, i, 3, reduce="add"), False),
    ("scatter.src", lambda x, i, y: x.scatter(1, i, y), False),
    ("scatter.value", lambda x, i, y: x.scatter(1, i, 3), False),
    ("index_copy.default", lambda x, i, y: x.index_copy(1, i, y), True),
    ("index_put.default", lambda x, i, y: x.index_put((i % 3, i - 20), y[0]), True),
    ("put.default", lambda x, i, y: x.put(i, y[0]), True),
    ("index_fill.int_Scalar", lambda x, i, y: x.index_fill(1, i - 20, 3), True),
    ("index_fill.int_Tensor", lambda x, i, y: x.index_fill(1, i, y[0, 0]), True),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64])
@pytest.mark.parametrize(("name", "write", "is_shared"), WRITES)
def test_results_of_some_of_the_indices_are_joined(
    name: str, write: Callable[..., X], is_shared: bool, dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    index = numbers(17, 90) if is_shared else numbers(17, 3, 90)
    machine = judge(
        Writes(write), values(dtype, 1, 3, 20), index[None], values(dtype, 1, 3, 90),
        options=torchipu.Options(allow_out_of_memory=True, available_memory={0: 1e-6}),
    )
    served(machine, f"aten.{name}")
    assert has_parts(machine)


def has_parts(machine: Judged) -> bool:
    """Whether partial results of rows were joined."""
    groups = groups_of(machine.executable)
    return any(group.codelet == SUM_OF_TABLES.name for group in groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
@pytest.mark.parametrize(("name", "write", "is_shared"), WRITES)
def test_more_elements_are_written_than_a_tile_holds(
    name: str, write: Callable[..., X], is_shared: bool, dtype: torch.dtype,
) -> None:
    torch._dynamo.reset()  # the lambdas of a list are one piece of code to it, of which it compiles eight
    torch.manual_seed(0)
    count = 1 << 16
    index = torch.randperm(count) if is_shared else torch.randperm(count).expand(3, -1)
    if "put" not in name and "copy" not in name and name != "scatter.src":
        index = index % 10_000
    x, source = values(dtype, 3, count), values(dtype, 3, count)
    torch.testing.assert_close(
        torch.compile(write, backend="ipu")(x, index, source).double(),
        write(*(one.double() if one.is_floating_point() else one for one in (x, index, source))).double(),
        rtol=1e-5, atol=1e-5,
    )


@pytest.mark.parametrize(("rows", "width", "count"), [(10_000, 256, 1 << 14), (30_000, 64, 1 << 16), (300, 8, 9)])
def test_of_rows_of_a_bounded_norm_a_tile_receives_the_indices_alone(rows: int, width: int, count: int) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    table, index = torch.randn(rows, width), numbers(rows, count)

    def bounded(table: X, index: X) -> X:
        return torch.nn.functional.embedding(index, table.clone(), max_norm=1.0)

    made = torch.compile(bounded, backend="ipu")(table, index)
    torch.testing.assert_close(made.double(), bounded(table.double(), index), rtol=1e-5, atol=1e-6)


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
