"""In-place operators write where their tensor lies, and only where nothing is lost by that: values against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from torchipu.errors import ExecutionError
from torchipu.host.plan import HostPlan
from torchipu.host.planner import Planner


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[HostPlan]]:
    """The host plans that are made."""
    made: list[HostPlan] = []
    plan = Planner.plan

    def kept(self: Planner) -> HostPlan:
        made.append(plan(self))
        return made[-1]

    monkeypatch.setattr(Planner, "plan", kept)
    yield made
    torch._dynamo.reset()


OPTIMISERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, eps=1e-3),
    "one after another": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
}


def trained(optimiser: torch.optim.Optimizer, compiled: bool) -> list[torch.Tensor]:
    """Make three steps with gradients that depend on the weights; return the weights."""
    (weights,) = (group["params"] for group in optimiser.param_groups)
    step = torch.compile(optimiser.step, backend="ipu") if compiled else optimiser.step
    for _ in range(3):
        for number, weight in enumerate(weights):
            weight.grad = (weight.detach() * (number + 1)).cos()
        step()
    return list(weights)


# Of halves the others' squares vanish.
@pytest.mark.parametrize(("name", "dtype"), [
    *((name, torch.float32) for name in OPTIMISERS), ("SGD", torch.float16), ("AdamW", torch.float16),
])
def test_a_compiled_optimiser_updates_in_place_what_eager_does(
    name: str, dtype: torch.dtype, plans: list[HostPlan],
) -> None:
    values = [torch.randn(33, 65), torch.randn(7), torch.randn(4, 3, 2)]
    first = [nn.Parameter(value.to(dtype)) for value in values]
    judge = [nn.Parameter(value.to(dtype).double()) for value in values]
    addresses = [weight.data_ptr() for weight in first]
    versions = [weight._version for weight in first]
    results = trained(OPTIMISERS[name](first), compiled=True)
    for result, expected in zip(results, trained(OPTIMISERS[name](judge), compiled=False), strict=True):
        tolerance = 2e-6 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
    assert [weight.data_ptr() for weight in first] == addresses
    assert all(weight._version > version for weight, version in zip(first, versions, strict=True))
    assert len(plans[-1].over_inputs) >= 2 * len(first)  # weights, and a moment of each at least


def test_weights_of_one_size_do_not_mix_their_steps(plans: list[HostPlan]) -> None:
    first = [nn.Parameter(torch.randn(70, 70)) for _ in range(5)]
    judge = copy.deepcopy(first)
    results = trained(torch.optim.AdamW(first), compiled=True)
    for weight, expected in zip(results, trained(torch.optim.AdamW(judge), compiled=False), strict=True):
        torch.testing.assert_close(weight, expected, rtol=2e-6, atol=2e-6)
    large = [step for step in plans[-1].steps if step.outputs[0].num_elements == 4900]
    assert len(large) == len(first), "each weight goes through memory once"


def read_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    before = x * 2
    x.add_(y)
    return before + x


def read_after_it_was_made(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = (x + y).exp()
    read = made * x
    x.copy_(made)
    return read


def returned_too(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(y)
    return x.clone()


def returned_as_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(y)
    return x.flatten()


def exchanged(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return kept


def turned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(x.t() * 2)
    return y + 1


def part_of_it(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:3].mul_(2)
    return x + y


def product_of_it(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.sub_(x @ y)
    return y.sum()


def by_its_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(x.sum())
    return y.sum()


FUNCTIONS = [
    read_before, read_after_it_was_made, returned_too, returned_as_view, exchanged, turned, part_of_it, product_of_it,
    by_its_sum,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_what_is_written_in_place_is_what_eager_writes(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype, plans: list[HostPlan],
) -> None:
    if function is read_after_it_was_made and dtype is torch.int64:
        pytest.skip("an exponential of integers is no integer")
    compiled = torch.compile(function, backend="ipu")
    x, y = ((torch.randn(40, 40) * 3).to(dtype) for _ in range(2))
    for _ in range(2):
        mine, judge = (x.clone(), y.clone()), (x.clone(), y.clone())
        results = (compiled(*mine), *mine)
        for result, expected in zip(results, (function(*judge), *judge), strict=True):
            assert result.dtype is expected.dtype
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-2 if dtype is torch.float16 else 1e-4)
        result, held = results[0].clone(), mine[0].clone()
        if function is not returned_as_view:
            mine[0].add_(1)  # a result has memory of its own
            torch.testing.assert_close(results[0], result, rtol=0, atol=0)
            mine[0].copy_(held)


def test_inputs_that_overlap_are_read_before_any_is_written(plans: list[HostPlan]) -> None:
    def running(x: torch.Tensor, y: torch.Tensor) -> None:
        x.mul_(2).add_(y)

    compiled = torch.compile(running, backend="ipu")
    apart = torch.randn(2, 5000)
    expected = apart[0] * 2 + apart[1]
    compiled(apart[0].clone(), apart[1])
    assert plans[-1].over_inputs
    together = torch.randn(9000)
    x, y = together[:5000], together[4000:]
    expected = x * 2 + y
    compiled(x, y)
    torch.testing.assert_close(x, expected)
    assert not plans[-1].over_inputs
    alike = torch.randn(5000)
    expected = alike * 3
    compiled(alike, alike.view(5000))
    torch.testing.assert_close(alike, expected)


def test_nothing_is_written_where_a_value_is_refused(plans: list[HostPlan]) -> None:
    def divided(x: torch.Tensor, number: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return number // divisor

    compiled = torch.compile(divided, backend="ipu")
    x, number = torch.randn(300), torch.arange(300)
    before = x.clone()
    with pytest.raises(ExecutionError, match="out of the range"):
        compiled(x, number, torch.zeros(300, dtype=torch.int64))
    assert torch.equal(x, before)
    compiled(x, number, torch.ones(300, dtype=torch.int64))
    assert torch.equal(x, before + 1)


def test_numbers_of_threads_change_no_bit(plans: list[HostPlan]) -> None:
    def updated(threads: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(300, 301)) for _ in range(3)]
        optimiser = torch.optim.AdamW(weights, 0.01)
        step = torch.compile(optimiser.step, backend="ipu", options={"host_threads": threads})
        for weight in weights:
            weight.grad = weight.detach().sin()
        step()
        torch._dynamo.reset()
        return weights

    for one, many in zip(updated(1), updated(3), strict=True):
        assert torch.equal(one, many)
