"""What forward changes beside its results within bodies of `for_loop` and `cond`, on replicas and in pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.releases import LEFT_TENSORS
from torchipu import poptorch

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25], [-2.0, 4.0]])
TRIPS = 3
CALLS = 0


class Model(nn.Module):
    """Calls a function with itself and its input."""

    def __init__(self, body: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("average", torch.zeros(2))
        self.tensor, self.number = torch.ones(2), 0
        self.history: list[torch.Tensor] = []
        self.cache: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global CALLS
    CALLS = 0


def number(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.number += 1
    return y + model.number


def global_number(model: Any, y: torch.Tensor) -> torch.Tensor:
    global CALLS
    CALLS += 1
    return y + CALLS


def tensor(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.tensor = model.tensor * 0.5 + y.mean(0)
    return y + model.tensor


def appended(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.history.append(y.mean(0))
    return y + sum(model.history)


def item(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.cache["x"] = model.cache.get("x", 0) + y.mean(0)  # type: ignore[call-overload]
    return y + model.cache["x"]


CHANGES = {number: "number", global_number: "CALLS", tensor: "tensor", appended: "history", item: "cache"}


def once_a_trip(body: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    return lambda model, x: poptorch.for_loop(TRIPS, lambda y: [body(model, y)], [x])[0]


@pytest.mark.parametrize("body", CHANGES)
def test_every_trip_begins_with_what_there_was_before_the_loop_and_it_is_said_once(
    body: Any, capsys: pytest.CaptureFixture[str],
) -> None:
    step = poptorch.inferenceModel(Model(once_a_trip(body)))
    results = [step(X) for _ in range(2)]
    told = [line for line in capsys.readouterr().err.splitlines() if "a body of poptorch.for_loop: every trip" in line]
    assert len(told) == 1
    assert CHANGES[body] in told[0]
    expected = X
    for _ in range(TRIPS):
        _fresh.__wrapped__()  # type: ignore[attr-defined]
        expected = body(Model(body), expected)
    for result in results:
        torch.testing.assert_close(result, expected)


def local_tensor(model: Any, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)

    def trip(y: torch.Tensor) -> list[torch.Tensor]:
        nonlocal total
        total = total + y
        return [y + total]

    return poptorch.for_loop(TRIPS, trip, [x])[0]


def local_number(model: Any, x: torch.Tensor) -> torch.Tensor:
    count = 0

    def trip(y: torch.Tensor) -> list[torch.Tensor]:
        nonlocal count
        count += 1
        return [y + y * count]

    return poptorch.for_loop(TRIPS, trip, [x])[0]


@pytest.mark.parametrize(("forward", "name"), [(local_tensor, "total"), (local_number, "count")])
def test_so_does_a_variable_of_forward(forward: Any, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.testing.assert_close(poptorch.inferenceModel(Model(forward))(X), X * 2**TRIPS)
    told = f"{name} of an enclosing function is changed in a body of poptorch.for_loop"
    assert capsys.readouterr().err.count(told) == 1


def test_a_number_that_branches_change_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        scale = 1

        def double(y: torch.Tensor) -> list[torch.Tensor]:
            nonlocal scale
            scale = 2
            return [y]

        (y,) = poptorch.cond(x.sum() > 0, double, [x], lambda y: [-y], [x])
        return y * scale

    poptorch.inferenceModel(forward)(X)
    told = "scale of an enclosing function is changed in a body of poptorch.cond: what it is afterwards is the same"
    assert capsys.readouterr().err.count(told) == 1


def left_in_a_variable(model: Any, x: torch.Tensor) -> torch.Tensor:
    last = torch.zeros(2)

    def trip(y: torch.Tensor) -> list[torch.Tensor]:
        nonlocal last
        last = y.mean(0)
        return [y + 1]

    (y,) = poptorch.for_loop(TRIPS, trip, [x])
    return y + last


def left_in_a_list(model: Any, x: torch.Tensor) -> torch.Tensor:
    (y,) = poptorch.for_loop(TRIPS, lambda y: [appended(model, y)], [x])
    return y + model.history[-1]


def left_by_a_branch(model: Any, x: torch.Tensor) -> torch.Tensor:
    (y,) = poptorch.cond(x.sum() > 0, lambda y: [tensor(model, y)], [x], lambda y: [tensor(model, -y)], [x])
    return y + model.tensor


@LEFT_TENSORS
@pytest.mark.parametrize("forward", [left_in_a_variable, left_in_a_list, left_by_a_branch])
def test_a_tensor_that_a_body_does_not_return_is_refused(forward: Any) -> None:
    with pytest.raises(poptorch.Error, match="in the body of a loop or a branch, which does not return it") as caught:
        poptorch.inferenceModel(Model(forward))(X)
    assert "return it from the body" in str(caught.value)


def rebound(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.average = model.average * 0.5 + y.mean(0)
    return y + model.average


def in_a_branch(model: Any, x: torch.Tensor) -> torch.Tensor:
    return poptorch.cond(x.sum() > 0, lambda y: [rebound(model, y)], [x], lambda y: [y], [x])[0]


@pytest.mark.parametrize("forward", [once_a_trip(rebound), in_a_branch])
def test_a_buffer_that_a_body_gives_another_tensor_is_refused(forward: Any) -> None:
    with pytest.raises(poptorch.Error, match="average is reassigned within the model when calling the forward method"):
        poptorch.inferenceModel(Model(forward))(X)


# ---------------------------------------------------------------------- replicas, pipelines
class Staged(Model):
    """Runs its body on the second IPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("first", ipu_id=0):
            y = x * 2
        with poptorch.Block("second", ipu_id=1):
            return self.body(self, y)


def replicated() -> Any:
    options = poptorch.Options()
    options.replicationFactor(2)
    return options


def pipelined() -> Any:
    options = poptorch.Options()
    options.deviceIterations(4)
    return options


WAYS = [(Model, replicated, 2), (Staged, pipelined, 4)]


@pytest.mark.parametrize("body", CHANGES)
@pytest.mark.parametrize(("kind", "options", "parts"), WAYS)
def test_every_micro_batch_begins_with_the_value_at_capture(
    kind: Any, options: Any, parts: int, body: Any, capsys: pytest.CaptureFixture[str],
) -> None:
    step = poptorch.inferenceModel(kind(body), options())
    results = [step(X) for _ in range(2)]
    assert capsys.readouterr().err.count("is changed when calling the forward method") == 1
    expected = []
    for part in X.chunk(parts):
        _fresh.__wrapped__()  # type: ignore[attr-defined]
        expected.append(kind(body)(part))
    for result in results:
        torch.testing.assert_close(result, torch.cat(expected))


@pytest.mark.parametrize(("kind", "options", "parts"), WAYS)
def test_a_rebound_buffer_is_refused_there_too(kind: Any, options: Any, parts: int) -> None:
    with pytest.raises(poptorch.Error, match="average is reassigned within the model when calling the forward method"):
        poptorch.inferenceModel(kind(rebound), options())(X)
