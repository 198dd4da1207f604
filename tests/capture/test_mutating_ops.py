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


def test_a_list_that_is_written_is_refused_with_what_to_do() -> None:
    def zeroed(x: Tensor) -> Tensor:
        y = x * 2
        all_of([y])
        return y

    with pytest.raises(Exception, match="writes into a list of tensors") as caught:
        torch.compile(zeroed, backend="ipu")(torch.ones(3))
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, UnsupportedOpError)
    assert "one tensor for each argument" in str(error)
