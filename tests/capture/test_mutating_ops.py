"""Operators of the user's that write into their arguments: through every door as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchipu
from torchipu.errors import UnsupportedOpError


@torch.library.custom_op("mutating::scale", mutates_args={"values"})
def scale(values: Tensor, factor: float) -> None:
    values.mul_(factor)


scale.register_fake(lambda values, factor: None)


@torch.library.custom_op("mutating::take", mutates_args={"store", "count"})
def take(store: Tensor, new: Tensor, count: Tensor, *, weight: float = 1.0) -> Tensor:
    store.add_(new, alpha=weight)
    count.add_(1)
    return store.sum(0) * weight


take.register_fake(lambda store, new, count, weight=1.0: store.new_empty(store.shape[1:]))


@torch.library.custom_op("mutating::pair", mutates_args={"one"})
def pair(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    one.sub_(other)
    return one * 2, other * 3


pair.register_fake(lambda one, other: (torch.empty_like(one), torch.empty_like(other)))


@torch.library.custom_op("mutating::all_of", mutates_args={"tensors"})
def all_of(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()


all_of.register_fake(lambda tensors: None)


@torch.library.custom_op("mutating::exchange", mutates_args={"one", "other"})
def exchange(one: Tensor, other: Tensor) -> None:
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept + 1)


exchange.register_fake(lambda one, other: None)


@torch.library.custom_op("mutating::into", mutates_args={"one", "other"})
def into(one: Tensor | None, other: Tensor | None, values: Sequence[Tensor]) -> None:
    for tensor in (one, other):
        if tensor is not None:
            tensor.add_(sum(values) + 1)


into.register_fake(lambda one, other, values: None)


@torch.library.custom_op("mutating::averages", mutates_args={"means"})
def averages(means: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for mean, value in zip(means, values, strict=True):
        mean.mul_(0.5).add_(value, alpha=0.5)


averages.register_fake(lambda means, values: None)


def whole(x: Tensor) -> Any:
    y = x * 2
    scale(y, 3.0)
    return y + 1


def part(x: Tensor) -> Any:
    y = x * 2
    scale(y[1:3], 3.0)
    scale(y[:, ::2], 0.5)
    scale(y.t()[1], 7.0)
    return y + 1


def argument(x: Tensor) -> Any:
    scale(x, 3.0)
    return x + 1


def several(x: Tensor) -> Any:
    y, count = x * 2, torch.zeros(())
    sums = take(y, x, count, weight=0.5)
    one, other = pair(y, x)
    return y, count, sums, one, other


@pytest.mark.parametrize("function", [whole, part, argument, several])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_written_is_seen_as_in_eager(function: Callable[..., Any], dynamic: bool) -> None:
    torch._dynamo.reset()
    run = torch.compile(function, backend="ipu", fullgraph=True, dynamic=dynamic)
    for rows in (4, 5):
        ours, theirs = (torch.arange(rows * 4.0).view(rows, 4) for _ in range(2))
        torch.testing.assert_close(run(ours), function(theirs))
        torch.testing.assert_close(ours, theirs)


class Cached(nn.Module):
    """Writes into a buffer by an operator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("store", torch.zeros(3, 4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(take(self.store, x.detach(), self.count)).square().sum()


def test_a_buffer_that_an_operator_writes_keeps_its_value_from_call_to_call() -> None:
    model = Cached()
    twin = copy.deepcopy(model)
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.01))
    optimizer = torch.optim.SGD(twin.parameters(), 0.01)
    for number in range(3):
        x = torch.full((3, 4), float(number))
        optimizer.zero_grad()
        expected = twin(x)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(step(x).reshape(()), expected.detach())
    for ours, theirs in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert model.count == 3


def listed(x: Tensor) -> Any:
    y, z = x * 2, x + 1
    all_of([y, z[1:3]])
    all_of([y[:0], z[:, 1]])
    return y + 1, z


def parts_of_one(x: Tensor) -> Any:
    y = x.repeat(2, 1) * 2
    exchange(y[: len(x)], y[len(x) :])
    pairs = y.view(-1, 2)
    exchange(pairs[:, 0], pairs[:, 1])  # each second element
    return y, pairs + 1


def parts_of_an_argument(x: Tensor) -> Any:
    exchange(x[:, 1], x[:, 3])  # with other elements between and behind them
    return x + 1


def perhaps(x: Tensor) -> Any:
    y, z = x * 2, x * 3
    into(y, None, [x])
    into(None, z, [])
    into(None, None, [x])
    return y, z


@pytest.mark.parametrize("function", [listed, parts_of_one, parts_of_an_argument, perhaps])
@pytest.mark.parametrize("dynamic", [False, True])
def test_lists_parts_of_one_tensor_and_none_are_written(function: Callable[..., Any], dynamic: bool) -> None:
    test_what_is_written_is_seen_as_in_eager(function, dynamic)


class Moving(nn.Module):
    """Keeps averages of what its layers give, all written at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.register_buffer("means", torch.zeros(2, 3))
        self.register_buffer("last", torch.zeros(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for layer in self.layers:
            x = layer(x).tanh()
            seen.append(x.detach())
        averages([*self.means, self.last], [*(one.mean(0) for one in seen), seen[-1]])
        return x.square().sum()


def test_buffers_that_are_written_by_a_list_keep_their_values() -> None:
    model = Moving()
    twin = copy.deepcopy(model).double()
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1))
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for number in range(3):
        x = torch.full((4, 3), float(number))
        optimizer.zero_grad()
        expected = twin(x.double())
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(step(x).reshape(()).double(), expected.detach())
    for ours, theirs in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("write", [
    lambda y: all_of([y, y[1:]]), lambda y: exchange(y[:3], y[1:]), lambda y: exchange(y[:, :2], y[:, 1:3]),
])
def test_parts_that_overlap_are_refused_with_what_to_do(write: Callable[[Tensor], None]) -> None:
    def overlapping(x: Tensor) -> Tensor:
        y = x * 2
        write(y)
        return y

    with pytest.raises(Exception, match="they may overlap") as caught:
        torch.compile(overlapping, backend="ipu")(torch.ones(4, 3))
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, UnsupportedOpError)
    assert "no two share an element" in str(error)
