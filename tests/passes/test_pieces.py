"""Gradients of slices and writes of pieces become concatenations, with the values of eager PyTorch in float64."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchipu
from torchipu.ir.graph import walk_ops
from torchipu.optable.pieces import Place
from torchipu.passes.padded_sums import concatenate_padded_sums
from torchipu.passes.written_pieces import concatenate_written_pieces

SIZES = (3, 6, 5)
Function = Callable[[torch.Tensor], torch.Tensor]


class Weighted(nn.Module):
    """A function of a product with weights, whose gradient goes through all that reads the product, to a loss."""

    def __init__(self, function: Function, size: int = SIZES[-1]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.function = function

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.function(x * self.weight)
        return y, (y * y).mean()


def trained(model: nn.Module, x: torch.Tensor, **options: object) -> tuple[Counter[str], torch.Tensor, torch.Tensor]:
    """Return how many ops of each kind a training step has, what the model gives, and its weights afterwards."""
    ours = copy.deepcopy(model)
    optimiser = torch.optim.SGD(ours.parameters(), lr=1.0)
    step = torchipu.TrainStep(ours, optimiser, torchipu.Options(verify=True, **options))
    found, _ = step(x)
    kinds = Counter(op.kind for op in walk_ops(step.compiled.graph.ops))
    return kinds, found, ours.weight.detach()


def check(function: Function, x: torch.Tensor | None = None, **options: object) -> Counter[str]:
    """Compare a training step with eager PyTorch in float64; return how many ops of each kind it has."""
    torch.manual_seed(1)
    x = torch.randn(SIZES) if x is None else x
    model = Weighted(function, x.shape[-1])
    exact = copy.deepcopy(model).double()
    wanted, loss = exact(x.double())
    loss.backward()
    kinds, found, weight = trained(model, x, **options)
    torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-5, atol=1e-5)
    moved = exact.weight.detach() - exact.weight.grad
    # Elements of the gradient are sums of numbers as large as the others are, and larger ones that cancel.
    largest = float(exact.weight.grad.abs().max())
    torch.testing.assert_close(weight.double(), moved, rtol=1e-5, atol=1e-5 + 1e-6 * largest)
    return kinds


def padded(kinds: Counter[str]) -> int:
    """Return how many gradients are padded with zeros to the whole size."""
    return kinds["select_backward"] + kinds["slice_backward"]


# --------------------------------------------------------------------------- gradients of reads
def steps_of(y: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(y.shape[0], y.shape[2], dtype=y.dtype)
    for time in range(y.shape[1]):
        state = torch.tanh(state + y[:, time])
    return state


READS: dict[str, tuple[Function, int]] = {
    "every step": (steps_of, 0),
    "halves": (lambda y: torch.cat([-y[..., 2:], y[..., :2]], -1), 0),
    "a gap in the middle": (lambda y: y[:, 0] * y[:, 4], 0),
    "gaps at the ends": (lambda y: y[:, 2] * y[:, 3].sin(), 0),
    "selected and sliced": (lambda y: y[:, 0] + y[:, 1:3].sum(1) * y[:, -1], 0),
    "the same twice": (lambda y: y[:, 1].sin() * y[:, 1].cos() * y[:, 3], 0),
    "only the same twice": (lambda y: y[:, 1].sin() * y[:, 1].cos(), 1),
    "pieces beside the whole": (lambda y: y.sin() * y[:, :1] + y[:, 1:2].exp(), 0),
    "that overlap": (lambda y: y[:, 1:] - y[:, :-1], 2),
    "that overlap, in two rows": (lambda y: y[:, :4].sum(1) * y[:, 2:].sum(1) * y[:, 4:].sum(1), 1),
    "of two dimensions": (lambda y: y[0].sum(0) * y[1].sin().sum(0) * y[:, 0].sum(0) * y[:, 1].cos().sum(0), 0),
    "of pieces": (lambda y: y[:, 0, :2] * y[:, 0, 2:4] + y[:, 1, 1:3], 1),
    "with strides": (lambda y: y[:, ::2] * y[:, 1::2], 2),
    "counted from the end": (lambda y: y[:, -6] * y[:, -1] * y[:, -3:-1].sum(1), 0),
    "one alone": (lambda y: y[:, 2] * 2, 1),
}


@pytest.mark.parametrize("name", READS)
def test_gradients_of_pieces_are_put_together(name: str) -> None:
    function, left = READS[name]
    assert padded(check(function)) == left


def test_pieces_overlap_where_they_share_an_element() -> None:
    spans = [(begin, end) for begin in range(5) for end in range(begin + 1, 6)]
    for first, second in itertools.product(spans, spans):
        shared = set(range(*first)) & set(range(*second))
        assert Place(0, first, has_dim=True).overlaps(second) == bool(shared)


def test_what_is_put_together_is_no_longer_than_the_sequence() -> None:
    few, many = (check(steps_of, torch.randn(2, count, 4)) for count in (8, 16))
    assert many.total() - few.total() <= 2 * (few.total() - check(steps_of, torch.randn(2, 4, 4)).total()) + 2
    assert few["cat"] == many["cat"] == 1


def test_pieces_of_different_blocks_stay_apart() -> None:
    def parted(y: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("first", ipu_id=0):
            first = y[:, 0] * y[:, 1]
        with torchipu.Block("second", ipu_id=1):
            return first * y[:, 2] * y[:, 3]

    check(parted, execution="sharded")


@pytest.mark.parametrize("executor", ["tiles", "host"])
def test_on_the_tiles_too(executor: str) -> None:
    check(steps_of, executor=executor)
    check(filled, executor=executor)


def test_half_sums_of_pieces_are_the_pieces() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, dtype=torch.half))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x * self.weight
            y = y[:, :4] * 2 + y[:, 4:] * 4
            return y, y.float().sum()

    model = Halves()
    kinds, _, weight = trained(model, torch.ones(2, 8, dtype=torch.half), stochastic_rounding=True)
    assert padded(kinds) == 0
    assert weight.tolist() == [-3.0] * 4 + [-7.0] * 4


# --------------------------------------------------------------------------- writes
def filled(y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(y)
    for time in range(y.shape[1]):
        out[:, time] = torch.tanh(y[:, time]) * (time + 1)
    return out


def filled_but_one(y: torch.Tensor) -> torch.Tensor:
    out = torch.ones_like(y).cumsum(1)
    for time in (0, 1, 2, 4, 5):
        out[:, time] = y[:, time].sin()
    return out


def from_the_last_step(y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(y)
    out[:, 0] = y[:, 0]
    for time in range(1, y.shape[1]):
        out[:, time] = y[:, time] + out[:, time - 1].clone()
    return out


def written_twice(y: torch.Tensor) -> torch.Tensor:
    out = y.clone()
    out[:, 1:3] = 2.0
    out[:, 1] = y[:, 0]
    out[:, 1] = y[:, 5]
    out[:, 0:4] = y[:, 2:6] * 3
    return out * 2


def written_in_part(y: torch.Tensor) -> torch.Tensor:
    out = y.clone()
    out[:, 1:4] = y[:, :3]
    out[:, 2] = y[:, 5]
    return out * y


def read_as_a_whole(y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(y)
    for time in range(3):
        out[:, time] = out.sum(1).sin() + y[:, time]
    return out


def along_two_dimensions(y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(y)
    out[0] = y[1]
    out[:, 0] = y[:, 1]
    out[..., 2:] = y[..., :3]
    return out * y


def all_at_once(y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(y)
    out[:, 0] = y[:, 1]
    out[:] = y.sin()
    return out


WRITES: dict[str, tuple[Function, int]] = {
    "every step": (filled, 0),
    "all but one": (filled_but_one, 0),
    "read where it was written": (from_the_last_step, 0),
    "the last write counts": (written_twice, 0),
    "a write remains in part": (written_in_part, 2),
    "read as a whole between": (read_as_a_whole, 3),
    "along two dimensions": (along_two_dimensions, 3),
    "all of it": (all_at_once, 0),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_piece_by_piece_is_put_together(name: str) -> None:
    function, left = WRITES[name]
    with torch.no_grad():
        x = torch.randn(SIZES)
        step = torchipu.InferenceStep(Weighted(function), torchipu.Options(verify=True))
        torch.testing.assert_close(step(x)[0], step.model(x)[0])
    kinds = Counter(op.kind for op in walk_ops(step.compiled.graph.ops))
    assert kinds["select_scatter"] + kinds["slice_scatter"] == left
    check(function)


def test_a_slice_that_was_written_is_not_cut_out_of_the_whole() -> None:
    def function(y: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(y)
        out[:, 0:2] = y[:, 0:2].sin()
        first = out[:, 0:2] * 3
        out[:, 2:6] = y[:, 2:6]
        return out * first.sum()

    with torch.no_grad():
        step = torchipu.InferenceStep(Weighted(function), torchipu.Options(verify=True))
        step(torch.randn(SIZES))
    sliced = [op for op in walk_ops(step.compiled.graph.ops) if op.kind == "slice"]
    assert len(sliced) == 2  # both of what is given
    check(function)


def test_a_graph_without_pieces_stays_the_same_object() -> None:
    with torch.no_grad():
        step = torchipu.InferenceStep(Weighted(lambda y: y.sin() + y.cos()))
        step(torch.randn(SIZES))
    graph = step.compiled.graph
    assert concatenate_written_pieces(graph) is graph
    assert concatenate_padded_sums(graph) is graph


def test_gradients_of_writes_make_nothing_whole_again() -> None:
    kinds = check(filled)
    assert kinds["select_scatter"] == padded(kinds) == 0
    assert kinds["cat"] == 2


class Cache(nn.Module):
    """Keeps what it is given at two places of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = self.kept[1] * 1.0
        self.kept[1] = x[0]
        self.kept[2:4] = x[1:3]
        return self.kept[1] + self.kept[0], before


def test_writes_into_a_buffer_are_seen_by_the_next_call() -> None:
    model, eager = Cache(), Cache()
    step = torchipu.InferenceStep(model, torchipu.Options(verify=True))
    for _ in range(3):
        x = torch.randn(3, 3)
        for found, wanted in zip(step(x), eager(x), strict=True):
            torch.testing.assert_close(found, wanted)


# --------------------------------------------------------------------------- whatever comes
@st.composite
def accesses(draw: st.DrawFn) -> list[tuple[bool, int, int, int | None]]:
    """Return reads and writes: whether it is a write, the dimension, its begin, and its end; None to select."""
    made = []
    for _ in range(draw(st.integers(2, 7))):
        dim = draw(st.integers(0, 1))
        begin = draw(st.integers(0, SIZES[dim] - 1))
        end = draw(st.one_of(st.none(), st.integers(begin + 1, SIZES[dim])))
        made.append((draw(st.booleans()), dim, begin, end))
    return made


def accessing(made: list[tuple[bool, int, int, int | None]]) -> Function:
    """Return the function that accesses its argument so, and gives what it has become and what was read."""

    def function(y: torch.Tensor) -> torch.Tensor:
        whole, read = y * 1.5, y.sum() * 0
        for number, (writes, dim, begin, end) in enumerate(made, start=1):
            piece = whole.select(dim, begin) if end is None else whole.narrow(dim, begin, end - begin)
            if writes:
                other = y.select(dim, begin) if end is None else y.narrow(dim, begin, end - begin)
                piece.copy_(other * number + read)
            else:
                read = read + (piece * number).mean()
        return whole + read

    return function


@settings(max_examples=40, deadline=None)
@given(accesses())
def test_any_order_of_reads_and_writes(made: list[tuple[bool, int, int, int | None]]) -> None:
    check(accessing(made))


@settings(max_examples=15, deadline=None)
@given(accesses())
def test_any_order_through_torch_compile(made: list[tuple[bool, int, int, int | None]]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)
    function, x = accessing(made), torch.randn(SIZES, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    wanted = function(exact)
    found = torch.compile(function, backend="ipu")(x)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    (found**2).sum().backward()
    (wanted**2).sum().backward()
    largest = float(exact.grad.abs().max())  # elements are sums of numbers as large, which may cancel
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-4, atol=1e-4 + 2e-6 * largest)
