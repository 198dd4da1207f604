"""What a forward changes beside computing its results, through all doors: buffers keep it, all else is told of."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from tests.releases import CHANGED_CONTAINERS, not_before
from torchipu import poptorch
from torchipu.poptorch._logging import logger

CALLS = 0
TOTAL = torch.zeros(())
SEEN: list[int] = []
X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25], [-2.0, 4.0]])


class Model(nn.Module):
    """A product, and what a function makes of it and of the model."""

    count = 0

    def __init__(self, body: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.linear, self.inner = body, nn.Linear(2, 2), nn.Module()
        self.register_buffer("average", torch.zeros(2))
        self.calls = nn.Buffer(torch.zeros((), dtype=torch.int32))
        self.inner.register_buffer("hidden", torch.zeros(2))
        self.inner.state = torch.zeros(2)
        self.tensor, self.number, self.factor, self.last = torch.zeros(()), 0, 0.0, None
        self.pair = (torch.zeros(2), torch.zeros(2))
        self.history: list[torch.Tensor] = []
        self.cache = {"x": torch.zeros(2)}
        self.recent: deque[torch.Tensor] = deque(maxlen=2)
        self.other = SimpleNamespace(number=0)
        self.holder = Holder()
        self.counter = counter()
        self.mask, self.features, self.is_ready = None, None, True

    def forward(self, x: torch.Tensor) -> Any:
        y = self.body(self, self.linear(x))
        return y, poptorch.identity_loss(y.pow(2), "mean")


class Holder:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.number = 0


def counter() -> Callable[[], int]:
    number = 0

    def call() -> int:
        nonlocal number
        number += 1
        return number

    return call


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global CALLS, TOTAL
    torch._dynamo.reset()
    CALLS, TOTAL, Model.count = 0, torch.zeros(()), 0
    SEEN.clear()


# ---------------------------------------------------------------------- buffers
def average(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.average = model.average * 0.9 + y.detach().mean(0)
    return y + model.average


def buffer_of_torch(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.calls = model.calls + 1
    return y * model.calls


def of_a_submodule(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.inner.hidden = torch.tanh(model.inner.hidden + y.detach().sum(0))
    return y + model.inner.hidden


def with_a_gradient(model: Any, y: torch.Tensor) -> torch.Tensor:
    before = model.average.detach()
    model.average = before * 0.5 + y.mean(0)
    return y + model.average


def after_it_was_read(model: Any, y: torch.Tensor) -> torch.Tensor:
    before = model.average
    model.average = before + 1
    return y + before * 10 + model.average


def twice(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.average = model.average + y.detach()[0]
    model.average = model.average * 0.5
    model.calls += 1
    return y + model.average


REBOUND = [average, buffer_of_torch, of_a_submodule, with_a_gradient, after_it_was_read, twice]


def micro_batches(model: nn.Module, x: torch.Tensor, parts: int) -> torch.Tensor:
    """Run eager PyTorch on each micro-batch in turn."""
    with torch.no_grad():
        return torch.cat([model(one)[0] for one in x.chunk(parts)])


def assert_same_buffers(model: nn.Module, twin: nn.Module) -> None:
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("body", REBOUND)
def test_a_buffer_that_is_given_another_tensor_is_a_state_of_what_torch_compiles(body: Any) -> None:
    model, twin = Model(body), Model(body)
    compiled = torch.compile(model, backend="ipu", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(X)[0], twin(X)[0])
    assert_same_buffers(model, twin)


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("body", REBOUND)
def test_a_buffer_that_is_given_another_tensor_is_a_state_of_inference(body: Any, iterations: int) -> None:
    model, twin = Model(body), Model(body)
    kept = [*model.buffers()]
    step = torchipu.InferenceStep(model, torchipu.Options(device_iterations=iterations))
    for _ in range(3):
        torch.testing.assert_close(step(X)[0], micro_batches(twin, X, iterations))
    assert_same_buffers(model, twin)
    assert all(one is other for one, other in zip(model.buffers(), kept, strict=True))


@pytest.mark.parametrize(("accumulation", "iterations"), [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("body", REBOUND)
def test_a_buffer_that_is_given_another_tensor_is_a_state_of_training(
    body: Any, accumulation: int, iterations: int,
) -> None:
    model, twin = Model(body), Model(body)
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.05),
        torchipu.Options(gradient_accumulation=accumulation, device_iterations=iterations),
    )
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.05)
    for _ in range(3):
        step(X)
        for batch in X.chunk(iterations):
            optimiser.zero_grad()
            for micro_batch in batch.chunk(accumulation):
                (twin(micro_batch)[1] / accumulation).backward()
            optimiser.step()
            twin.average = twin.average.detach()
    assert_same_buffers(model, twin)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_each_replica_has_a_rebound_buffer_of_its_own() -> None:
    model = Model(average)
    step = torchipu.InferenceStep(model, torchipu.Options(replicas=2, broadcast_buffers=False))
    step(X)
    expected = []
    for part in X.chunk(2):
        twin = Model(average)
        twin(part)
        expected.append(twin.average.detach())
    torch.testing.assert_close(step.replica_buffers()["average"], torch.stack(expected))


def test_a_rebound_buffer_within_blocks_of_a_pipeline_is_a_state() -> None:
    class Pipelined(Model):
        def forward(self, x: torch.Tensor) -> Any:
            with torchipu.Block("first", ipu_id=0):
                y = self.linear(x)
            with torchipu.Block("second", ipu_id=1):
                y = average(self, y)
                return y, y.pow(2).mean()

    model, twin = Pipelined(average), Pipelined(average)
    step = torchipu.InferenceStep(model, torchipu.Options(device_iterations=4))
    for _ in range(2):
        torch.testing.assert_close(step(X)[0], micro_batches(twin, X, 4))
    assert_same_buffers(model, twin)


@pytest.mark.parametrize("body", [average, buffer_of_torch, of_a_submodule])
@pytest.mark.parametrize("is_training", [False, True])
def test_poptorch_refuses_it_in_its_words(body: Any, is_training: bool) -> None:
    model = Model(body)
    executor: Any = poptorch.inferenceModel(model)
    if is_training:
        executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="is reassigned within the model when calling the forward method"):
        executor(X)


def grows(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.average = torch.cat([model.average, y.detach()[0]])
    return y + model.average.sum()


def of_another_type(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.calls = model.calls * 0.5
    return y + model.calls


def removed(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.average = None
    return y


def also_elsewhere(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.inner.hidden = model.inner.hidden + 1
    return y + model.average


REFUSED = {
    grows: r"gives the buffer average, float32\[2\], the value float32\[4\]",
    of_another_type: r"gives the buffer calls, int32\[\], the value float32\[\]",
    removed: r"gives the buffer average, float32\[2\], the value None",
    also_elsewhere: "gives the buffer average another tensor, while inner.hidden stays",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_cannot_be_written_into_a_buffer_is_refused_with_its_line(body: Any) -> None:
    model = Model(body)
    if body is also_elsewhere:
        model.average = model.inner.hidden
    with pytest.raises(torchipu.CaptureError, match=REFUSED[body]) as caught:
        torchipu.InferenceStep(model)(X)
    assert caught.value.source.file == __file__  # type: ignore[attr-defined]
    assert type(model) is Model


# ---------------------------------------------------------------------- all else
def tensor(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.tensor = model.tensor + 1
    return y + model.tensor


def tensor_of_a_submodule(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.inner.state = model.inner.state * 0.5 + y.detach().mean(0)
    return y + model.inner.state


def kept_from_the_last_call(model: Any, y: torch.Tensor) -> torch.Tensor:
    y = y if model.last is None else y + model.last
    model.last = y.detach()
    return y


def new_attribute(model: Any, y: torch.Tensor) -> torch.Tensor:
    y = y + getattr(model, "carried", 0.0)
    model.carried = y.detach()
    return y


def pair(model: Any, y: torch.Tensor) -> torch.Tensor:
    hidden, cell = model.pair
    model.pair = (hidden + y.detach()[0], cell * 2)
    return y + hidden


def item(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.cache["x"] = model.cache["x"] + y.detach()[0]
    return y + model.cache["x"]


def global_tensor(model: Any, y: torch.Tensor) -> torch.Tensor:
    global TOTAL
    TOTAL = TOTAL + 1
    return y + TOTAL


STATES = {
    tensor: "tensor", tensor_of_a_submodule: "inner.state", kept_from_the_last_call: "last", new_attribute: "carried",
    pair: "pair", item: "cache", global_tensor: "TOTAL",
}
"""Tensors that the next call reads, with their names."""


def number(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.number = model.number + 1
    return y + model.number


def factor(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.factor += 1.5
    return y + model.factor


def of_an_object(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.holder.number += 1
    return y + model.holder.number


def of_a_function(model: Any, y: torch.Tensor) -> torch.Tensor:
    return y + model.counter()


def global_number(model: Any, y: torch.Tensor) -> torch.Tensor:
    global CALLS
    CALLS += 1
    return y + CALLS


def appended(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.history.append(y.detach().mean())
    return y + sum(model.history)


def appended_to_a_global(model: Any, y: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    return y + len(SEEN)


def appended_to_a_deque(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.recent.append(y.detach().mean())
    return y + sum(model.recent)


def new_key(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.cache["y"] = y.detach()
    return y


def only_written(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.last = y.detach().softmax(-1)
    return y


def registered(model: Any, y: torch.Tensor) -> torch.Tensor:
    if not hasattr(model, "late"):
        model.register_buffer("late", torch.zeros(2))
    model.late = model.late + 1
    return y + model.late


WARNED = {
    number: "number", factor: "factor", of_an_object: "holder.number", of_a_function: "number", global_number: "CALLS",
    appended: "history", appended_to_a_global: "SEEN", appended_to_a_deque: "recent", new_key: "cache",
    only_written: "last", registered: "late",
}
"""What the next call would find, with its name; a program that knows nothing of it runs all the same."""


def made_once(model: Any, y: torch.Tensor) -> torch.Tensor:
    if model.mask is None:
        model.mask = torch.ones(2, 2).tril()
    if model.features is None:
        model.features = y.shape[1]
    return y @ model.mask * model.features


def the_same(model: Any, y: torch.Tensor) -> torch.Tensor:
    model.sizes = tuple(y.shape)
    model.is_ready = True
    model.last = model.last
    model.average.mul_(0.5)
    model.calls += 1
    return y


SILENT = [made_once, the_same]


@contextlib.contextmanager
def told_of() -> Iterator[list[str]]:
    """Yield a list of what is said by warnings of Python and in PopTorch's log."""
    told: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    listener = Listener()
    logger.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield told
        told += [str(one.message) for one in caught]
    finally:
        logger.removeHandler(listener)
    words = ("is changed when", "forward changes", "is registered", "side effects")
    told[:] = [line for line in told if any(word in line for word in words)]


def inference(model: nn.Module) -> Any:
    return torchipu.InferenceStep(model)


def training(model: nn.Module) -> Any:
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.0))


def poptorch_inference(model: nn.Module) -> Any:
    return poptorch.inferenceModel(model)


def poptorch_training(model: nn.Module) -> Any:
    return poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))


STEPS, EXECUTORS = [inference, training], [poptorch_inference, poptorch_training]


@pytest.mark.parametrize("body", STATES)
@pytest.mark.parametrize("door", STEPS)
def test_a_step_refuses_a_state_that_is_no_buffer(door: Any, body: Any) -> None:
    with pytest.raises(torchipu.CaptureError, match=rf"forward reads .*{STATES[body]}") as caught:
        door(Model(body))(X)
    error: Any = caught.value
    assert error.source.file == __file__
    assert "=" in error.source.code
    assert f'self.register_buffer("{STATES[body].rpartition(".")[2]}", ...)' in str(error)


@pytest.mark.parametrize("body", [
    pytest.param(body, marks=CHANGED_CONTAINERS) if body in (appended, appended_to_a_deque) else body for body in WARNED
])
@pytest.mark.parametrize("door", STEPS)
def test_a_step_warns_of_other_changes_with_name_and_line(door: Any, body: Any) -> None:
    with told_of() as told:
        step = door(Model(body))
        results = [step(X)[0] for _ in range(3)]
    assert len(told) == 1
    assert all(word in told[0] for word in (WARNED[body], __file__, "self.register_buffer("))
    torch.testing.assert_close(results[0], results[-1])


@pytest.mark.parametrize("body", [*STATES, *WARNED])
@pytest.mark.parametrize("door", EXECUTORS)
def test_poptorch_begins_each_call_with_the_value_at_capture_and_warns(door: Any, body: Any) -> None:
    name = {**STATES, **WARNED}[body]
    with told_of() as told:
        executor = door(Model(body))
        results = [executor(X)[0] for _ in range(3)]
    assert len(told) == 1
    assert all(word in told[0] for word in (name, "" if body is registered else __file__))
    _fresh.__wrapped__()  # type: ignore[attr-defined]
    expected = Model(body)(X)[0]
    for result in results:
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("body", SILENT)
@pytest.mark.parametrize("door", [*STEPS, *EXECUTORS])
def test_nothing_is_said_of_what_is_the_same_at_each_call(door: Any, body: Any) -> None:
    model, twin = Model(body), Model(body)
    with told_of() as told:
        result = door(model)(X)[0]
    assert told == []
    torch.testing.assert_close(result, twin(X)[0])


class Named(Model):
    """Takes arguments by name, and takes one out."""

    def forward(self, x: torch.Tensor, **options: Any) -> Any:
        factor = options.pop("factor")
        return super().forward(x * factor)


@pytest.mark.parametrize("door", STEPS)
def test_nothing_is_said_of_arguments(door: Any) -> None:
    with told_of() as told:
        result = door(Named(made_once))(X, factor=2.0)[0]
    assert told == []
    torch.testing.assert_close(result, Named(made_once)(X, factor=2.0)[0])


FORGETS = not_before((2, 12), "its Dynamo forgets what a function counts in a variable of the one around it")


@pytest.mark.parametrize("body", [
    *STATES, *(body for body in WARNED if body not in (appended_to_a_deque, of_a_function)),
    pytest.param(of_a_function, marks=FORGETS),
])
def test_what_torch_compiles_keeps_all_of_it(body: Any) -> None:
    """But for the length of a deque, which Dynamo forgets with every backend."""
    model = Model(body)
    compiled = torch.compile(model, backend="ipu")
    results = [compiled(X)[0].detach() for _ in range(3)]
    _fresh.__wrapped__()  # type: ignore[attr-defined]
    twin = Model(body)
    for result in results:
        torch.testing.assert_close(result, twin(X)[0].detach())
