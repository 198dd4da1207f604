"""Assertions on values end the run, in their own words and with the user's line, and leave all as it was.

PYTEST_DONT_REWRITE: the assertion of a model below has to be Python's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchipu import InferenceStep, Options, TrainStep, poptorch

GOOD = torch.arange(1.0, 7.0).reshape(2, 3)


def asynchronous(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all(), "above zero")
    return x * 2


def traceable(x: Tensor) -> Tensor:
    torch._assert((x > 0).all(), "above zero")  # type: ignore[arg-type]
    return x * 2


def plain(x: Tensor) -> Tensor:
    assert (x > 0).all(), "above zero"
    return x * 2


def every(x: Tensor) -> Tensor:
    torch._check_tensor_all(x > 0, lambda: "above zero")  # type: ignore[attr-defined]
    return x * 2


def criterion(x: Tensor) -> Tensor:
    return F.gaussian_nll_loss(x, x + 1, x)


def weighted(x: Tensor) -> Tensor:
    return torch.cov(x, aweights=x[0])


def conditional(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > -1000, asynchronous, lambda x: x * 3, (x,))


FORMS = (asynchronous, traceable, plain, every, criterion, weighted, conditional)
WORDS = ("above zero", "var has negative entry/entries", "cov(): aweights cannot be negative")


class Asserting(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.norm, self.function = nn.Linear(3, 3), nn.BatchNorm1d(3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x).mean() + self.norm(self.layer(x)).square().mean()


def words_of(call: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as raised:
        call()
    return str(raised.value)


def graph_door(model: nn.Module) -> Iterator[Callable[[Tensor], Any]]:
    torch._dynamo.reset()
    yield torch.compile(model, backend="ipu", fullgraph=True)


def step_door(model: nn.Module) -> Iterator[Callable[[Tensor], Any]]:
    yield TrainStep(model, torch.optim.Adam(model.parameters()))
    yield InferenceStep(model)


@pytest.mark.parametrize("door", [graph_door, step_door])
@pytest.mark.parametrize("function", FORMS)
def test_assertion_ends_the_call_and_leaves_states(function: Callable[[Tensor], Tensor], door: Any) -> None:
    for call in door(model := Asserting(function)):
        call(GOOD)
        before = copy.deepcopy(model.state_dict())
        text = words_of(lambda call=call: call(-GOOD))  # type: ignore[misc]
        assert text.splitlines()[0] in WORDS
        assert "source  " + __file__ in text
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
        call(GOOD)


@pytest.mark.parametrize("message", [(), ("above zero",)])
@pytest.mark.parametrize(("value", "holds"), [
    (0.0, False), (float("nan"), True), (3.0, True), ([0], False), ([False], False), (2, True),
])
@pytest.mark.parametrize("executor", ["host", "tiles"])
def test_a_value_is_true_where_eager_says_so(
    value: Any, holds: bool, message: tuple[str, ...], executor: str,
) -> None:
    class Asserts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._assert_async(x, *message)
            return x * 2

    given, step = torch.as_tensor(value), InferenceStep(Asserts(), Options(executor=executor))
    if holds:
        torch._assert_async(given, *message)
        step(given)
        return
    eager, ours = words_of(lambda: torch._assert_async(given, *message)), words_of(lambda: step(given))
    assert ours.splitlines()[0] == eager.splitlines()[0]
    assert "source  " + __file__ in ours


def test_a_micro_batch_that_fails_leaves_all_of_a_training_of_poptorch() -> None:
    class Words(Asserting):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, poptorch.identity_loss(super().forward(x), "none")

    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    models = [Words(asynchronous)]
    models.append(copy.deepcopy(models[0]))
    steps = [
        poptorch.trainingModel(model, options, torch.optim.Adam(model.parameters(), lr=0.1)) for model in models
    ]
    batch = torch.cat([GOOD, GOOD * 2])
    for step in steps:
        step(batch)
    with pytest.raises(poptorch.Error, match="above zero"):
        steps[0](torch.cat([GOOD, -GOOD]))
    for step in steps:
        step(batch)
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=0, atol=0)


def test_an_assertion_is_one_value() -> None:
    with pytest.raises(RuntimeError, match=r"an assertion takes one value, got 6"):
        torch.compile(lambda x: (torch._assert_async(x > 0, "above zero"), x * 2)[1], backend="ipu")(GOOD)
