"""`for_loop`, `cond` and dynamic slices: values of eager code, at run time, by value, and paid for by the trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import options
from torchipu import poptorch

X = torch.arange(8.0).reshape(2, 4)


def run(model: Callable[..., Any], *inputs: torch.Tensor, settings: Any = None) -> Any:
    """Return what a model gives on the device, after a first call with other values."""
    step = poptorch.inferenceModel(model, settings)
    step(*(tensor + 1 for tensor in inputs))
    return step(*inputs)


def cycles(model: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """Return the modelled cycles of a call."""
    settings = poptorch.Options()
    settings.logCycleCount(True)
    step = poptorch.inferenceModel(model, settings)
    step(*inputs)
    return step.cycleCount()


class Loop(nn.Module):
    """Runs a layer several times; also uses a tensor from around the body, and writes into all that it has."""

    def __init__(self, trips: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.trips = nn.Linear(4, 4), trips

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        around = x * 2

        def body(a: torch.Tensor, b: torch.Tensor) -> Any:
            a += 1
            around.add_(1)
            return self.layer(a) * 0.5 + around, b * 2 + a

        a, b = poptorch.for_loop(self.trips, body, [x, y])
        return a, b, around, x

    def eager(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """Do the same in float64 without in-place writes."""
        weight, bias = self.layer.weight.double(), self.layer.bias.double()
        a, b, around = x.double(), y.double(), x.double() * 2
        for _ in range(self.trips):
            b = b * 2 + a + 1
            a = ((a + 1) @ weight.T + bias) * 0.5 + around + 1
        return a, b, around, x.double()


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_for_loop_carries_values_and_leaves_what_is_around_it(trips: int) -> None:
    model = Loop(trips)
    inputs = torch.randn(2, 4), torch.randn(2, 4)
    for got, expected in zip(run(model, *inputs), model.eager(*inputs), strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("call", "expected"), [
    (lambda a: poptorch.for_loop(3, lambda u: [u + a], [a]), 4),
    (lambda a: poptorch.for_loop(3, lambda u, v: [u + v, v * 2], [a, a]), 8),
    (lambda a: poptorch.for_loop(3, lambda u: [u.add_(a.view(2))], [a]), 4),
    (lambda a: poptorch.for_loop(3, lambda u: poptorch.for_loop(2, lambda w: [w + u], [u]), [a]), 27),
    (lambda a: poptorch.cond(a.sum() > 0, lambda u: [u.mul_(3) + a], [a], lambda u: [u - a], [a]), 4),
])
def test_a_tensor_may_be_carried_and_be_around_the_body_at_once(call: Any, expected: float) -> None:
    assert run(call, torch.ones(2))[0].tolist() == [expected, expected]


def test_for_loop_without_a_wrapper_runs_every_trip() -> None:
    assert poptorch.for_loop(3, lambda a: a * 2, [X])[0].equal(X * 8)
    assert poptorch.for_loop(0, lambda a: a * 2, [X])[0].equal(X)
    inputs = [X.clone()]
    poptorch.for_loop(2, lambda a: a.add_(1), inputs)
    assert inputs[0].equal(X)


def test_for_loop_costs_its_body_by_the_trip() -> None:
    inputs = torch.randn(2, 4), torch.randn(2, 4)
    two, four, eight = (cycles(Loop(trips), *inputs) for trips in (2, 4, 8))
    assert eight - four == 2 * (four - two) > 0


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_cond_chooses_by_a_value_of_the_run(value: float) -> None:
    layer = nn.Linear(4, 4)

    def model(c: torch.Tensor, x: torch.Tensor) -> Any:
        scale = x.sum()
        return poptorch.cond(
            c > 0, lambda a: (layer(a), a * scale), [x], lambda a, b: [a - b.mul_(3), a], [x, x * 2],
        )

    step = poptorch.inferenceModel(model)
    step(torch.tensor([-value]), X)  # compiled with the other branch
    got = step(torch.tensor([value]), X)
    assert isinstance(got, list)
    expected = (layer(X), X * X.sum()) if value > 0 else (X - X * 6, X)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other.detach())
    with torch.no_grad():
        for one, other in zip(model(torch.tensor([value]), X), expected, strict=True):
            assert torch.equal(one, other)


def test_control_flow_nests_and_sees_what_is_around_all_of_it() -> None:
    layer = nn.Linear(4, 4, bias=False)

    def model(c: torch.Tensor, x: torch.Tensor) -> Any:
        y = x.exp()

        def inner(t: torch.Tensor) -> torch.Tensor:
            return poptorch.cond(c > 0, lambda a: a + layer.weight.sum(), [t], lambda a: a - y, [t])[0]

        def outer(t: torch.Tensor) -> Any:
            return poptorch.for_loop(2, lambda a: inner(a) * 0.5, [t + y])

        return poptorch.for_loop(3, outer, [x])

    for value in (1.0, -1.0):
        got = run(model, torch.tensor([value]), X / 8)[0]
        with torch.no_grad():
            torch.testing.assert_close(got, model(torch.tensor([value]), X / 8)[0])


def test_control_flow_is_right_on_every_ipu_and_replica() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            with poptorch.Block("a", ipu_id=0):
                x = poptorch.for_loop(2, lambda t: self.first(t).tanh(), [x])[0]
            with poptorch.Block("b", ipu_id=1):
                return poptorch.cond(x.sum() > 0, self.second, [x], lambda t: t * 2 + self.second.bias, [x])[0]

    model, x = Split(), torch.randn(8, 4)
    for strategy in (poptorch.PipelinedExecution, poptorch.ShardedExecution):
        settings = options(4)
        settings.replicationFactor(2)
        settings.setExecutionStrategy(strategy("a", "b"))
        got = run(model, x, settings=settings)
        with torch.no_grad():
            torch.testing.assert_close(got, torch.cat([model(piece) for piece in x.chunk(8)]))


@pytest.mark.parametrize(("call", "kind", "words"), [
    (lambda x: poptorch.for_loop(2, lambda a: a, x), ValueError, r"\(Object is not list\)"),
    (lambda x: poptorch.for_loop(2, lambda a: a, [x, 3]), ValueError, "index 1 is not torch.tensor"),
    (lambda x: poptorch.for_loop(2, lambda a: (a, a), [x]), poptorch.Error, "they are 2 and 1"),
    (lambda x: poptorch.for_loop(2, lambda a: a.half(), [x]), poptorch.Error, "tensor 0 is .* of torch.float16"),
    (lambda x: poptorch.for_loop(-1, lambda a: a, [x]), poptorch.Error, "count must be an integer from 0, not -1"),
    (lambda x: poptorch.cond(x[0, 0], lambda: x, [], lambda: x, x), ValueError, "else_inps .*Object is not list"),
    (lambda x: poptorch.cond(x, lambda: x, [], lambda: x, []), poptorch.Error, "a tensor of one element"),
    (lambda x: poptorch.cond(x[0, 0], lambda: x, [], lambda: x[0], []), poptorch.Error, r"is \[4\]"),
])
def test_control_flow_refuses_what_the_program_cannot_run(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        poptorch.inferenceModel(call)(X)
    assert poptorch.inferenceModel(lambda x: x + 1)(X).equal(X + 1)  # nothing is left of the capture


@pytest.mark.parametrize(("name", "call"), [
    ("for_loop", lambda x: poptorch.for_loop(2, lambda a: a, [x])[0]),
    ("cond", lambda x: poptorch.cond(x.sum() > 0, lambda: x, [], lambda: x, [])[0]),
])
def test_control_flow_is_for_inference(name: str, call: Any) -> None:
    class Training(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return poptorch.identity_loss(call(super().forward(x)), "sum")

    model = Training(4, 4)
    before = model.weight.detach().clone()
    step = poptorch.trainingModel(model)
    with pytest.raises(poptorch.Error, match=rf"poptorch.{name}\(\) is only supported in inference."):
        step(X)
    step.destroy()
    assert type(model) is Training
    assert model.weight.equal(before)


# --------------------------------------------------------------------------- dynamic slices
def window(x: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """Return columns from ``start`` on, around the end."""
    return torch.stack([x[:, (start + column) % x.shape[1]] for column in range(size)], 1)


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_dynamic_slice_wraps_around_the_end(start: int, step: int) -> None:
    def model(x: torch.Tensor, i: torch.Tensor) -> Any:
        return poptorch.dynamic_slice(x, 1, i, 4, step), x[:, i : i + 4 : step], x[..., i - 1 : i + 1, None]

    first, second, third = run(model, X, torch.tensor([start]))
    assert first.equal(window(X, start, 4)[:, ::step])
    assert second.equal(first)
    assert third.squeeze(-1).equal(window(X, start - 1, 2))


@pytest.mark.parametrize("bounds", [
    lambda i, j: (2 * i, i * 2 + 2), lambda i, j: (i.long().view(1)[0], i.clone() + 2), lambda i, j: (-i, 2 - i),
    lambda i, j: (i + j, j + 1 + i + 1), lambda i, j: (i - j, 2 + (i - j)),
    lambda i, j: (i * 3 - j, (i - j) + 2 * i + 2),
    lambda i, j: (i.neg().sub(1), torch.add(torch.mul(i, -1), 1)), lambda i, j: (i.clone().add_(j), i + j + 2),
])
def test_windows_lie_between_any_integers_that_differ_by_a_constant(bounds: Any) -> None:
    """The judge is the same arithmetic on Python's numbers, which the windows begin from."""
    step = poptorch.inferenceModel(lambda x, i, j: x[:, slice(*bounds(i, j))])
    for i, j in ((0, 1), (1, 3), (3, 2)):
        start = int(bounds(torch.tensor(i), torch.tensor(j))[0])
        assert step(X, torch.tensor(i), torch.tensor(j)).equal(window(X, start, 2))


@pytest.mark.parametrize("start", [0, 1, 3])
def test_windows_can_be_written(start: int) -> None:
    def model(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
        y = x.clone()
        y[:, i : i + 2] = 5.0
        y[1, i : i + 2] += v[1]
        return poptorch.dynamic_update(x, v, 1, i, 2), y, x

    values = -torch.ones(2, 2)
    updated, written, x = run(model, X, torch.tensor(start), values)
    expected, in_place = X.clone(), X.clone()
    for column in range(2):
        expected[:, (start + column) % 4] = -1
        in_place[:, (start + column) % 4] = torch.tensor([5.0, 4.0])
    assert updated.equal(expected)
    assert written.equal(in_place)
    assert x.equal(X)


def test_windows_are_differentiable() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
            return poptorch.identity_loss(poptorch.dynamic_slice(super().forward(x), 1, i, 2, 1).square(), "sum")

    model = Model(4, 4)
    twin = nn.Linear(4, 4)
    twin.load_state_dict(model.state_dict())
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    step(X, torch.tensor([3]))
    window(twin(X), 3, 2).square().sum().backward()
    torch.testing.assert_close(model.weight, twin.weight - 0.1 * twin.weight.grad)


@pytest.mark.parametrize(("call", "words"), [
    (lambda x, i: x[:, i : i + 3], r"The size of the slice \(3\) must be a factor of the slicing dimension \(4\)."),
    (lambda x, i: x[:, i:i], "The start and end of a slice must be different."),
    (lambda x, i: x[:, i : i - 2], "Taking a slice of a tensor with the end less than the start is not supported."),
    (lambda x, i: x[:, i:], "Slicing size must be a constant"),
    (lambda x, i: x[:, i : i + i], "Slicing size must be a constant"),
    (lambda x, i: x[:, i : 2 * i + 1], "Slicing size must be a constant"),
    (lambda x, i: x[:, i : i.clone().mul_(2)], "Slicing size must be a constant"),
    (lambda x, i: x[:, i : torch.add(i, 2, alpha=2)], "Slicing size must be a constant"),
    (lambda x, i: x[:, i * i : i * i + 2], "Slicing size must be a constant"),
    (lambda x, i: x[:, i : (i + 0).abs_() + 2], "Slicing size must be a constant"),
    (lambda x, i: x[:, (j := i.clone()) : (j + 2, j.view(1).add_(1))[0]], "Slicing size must be a constant"),
    (lambda x, i: x[:, (j := i.clone()) : (j + 2, j.view(-1)[0].fill_(0))[0]], "Slicing size must be a constant"),
    (lambda x, i: x[:, i : i + 2 : i], "Slicing step must be a constant"),
    (lambda x, i: x[:, i : i + 2.0], "a float must not be added"),
    (lambda x, i: x.clone().__setitem__((0, slice(i, i + 2, 2)), 0), "slices with step size other than 1"),
    (lambda x, i: poptorch.dynamic_slice(x, 1, i, i, 1), "Size must be an integer."),
    (lambda x, i: poptorch.dynamic_slice(x, i, i, 2, 1), "Dimension must be an integer."),
    (lambda x, i: poptorch.dynamic_slice(x, 1, 2, 2, 1), "Start must be a tensor."),
    (lambda x, i: poptorch.dynamic_slice(x, 1, i, 2, i), "Step must be an integer."),
    (lambda x, i: poptorch.dynamic_slice(x, 1, i, 2, 0), "Slicing step must be at least 1"),
    (lambda x, i: poptorch.dynamic_slice(x, 1, i, 0, 1), "The start and end of a slice must be different."),
    (lambda x, i: poptorch.dynamic_slice(x, 1, i, 3, 1), r"The size of the slice \(3\) must be a factor"),
    (lambda x, i: poptorch.dynamic_update(x, x[0], 1, i, 2), r"same dimensionality. \(2\) vs \(1\)"),
    (lambda x, i: poptorch.dynamic_update(x, x.int(), 1, i, 4), r"same dtype. \(torch.float32 vs torch.int32\)"),
    (lambda x, i: poptorch.dynamic_update(x, x, 1, i, 0), "The start and end of a slice must be different."),
    (lambda x, i: poptorch.dynamic_update(x, x, 1, i, -1), "end less than the start"),
    (lambda x, i: poptorch.dynamic_update(x, x, 1, i, 2), r"must be \[2, 2\].* but it is \[2, 4\]"),
])
def test_windows_that_do_not_fit_are_refused(call: Any, words: str) -> None:
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(call)(X, torch.tensor([1]))


class Window(torch.nn.Module):
    """Writes into a window and reads one."""

    def forward(self, x: torch.Tensor, v: torch.Tensor, i: torch.Tensor) -> Any:
        return poptorch.dynamic_update(x, v, 0, i, 2), poptorch.dynamic_slice(x, 0, i, 2, 1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("start", [[2], 2, [5]])
def test_windows_have_starts_of_any_integer_type_outside_the_ipu_too(dtype: torch.dtype, start: Any) -> None:
    x, v, i = torch.arange(6.0), torch.tensor([7.0, 8.0]), torch.tensor(start, dtype=dtype)
    expected = x.clone()
    places = [int(i) % 6, (int(i) + 1) % 6]
    expected[places] = v
    for call in (Window(), poptorch.inferenceModel(Window())):
        updated, read = call(x, v, i)
        assert torch.equal(updated, expected)
        assert torch.equal(read, x[places])


@pytest.mark.parametrize(("one", "other", "words"), [
    (torch.float32, torch.int64, "torch.float32 vs torch.int32"),
    (torch.int64, torch.float32, "torch.int32 vs torch.float32"),
    (torch.float64, torch.int32, "torch.float32 vs torch.int32"),
    (torch.float16, torch.float64, "torch.float16 vs torch.float32"),
])
def test_unlike_types_are_told_as_the_device_holds_them(one: torch.dtype, other: torch.dtype, words: str) -> None:
    given = torch.zeros(6, dtype=one), torch.ones(2, dtype=other), torch.tensor([1])
    for call in (Window(), poptorch.inferenceModel(Window())):
        with pytest.raises(poptorch.Error, match=rf"input and src tensor must have same dtype. \({words}\)"):
            call(*given)


def test_types_that_the_device_holds_alike_go_together() -> None:
    given = torch.zeros(6, dtype=torch.int64), torch.ones(2, dtype=torch.int32), torch.tensor([1])
    for call in (Window(), poptorch.inferenceModel(Window())):
        assert call(*given)[0].tolist() == [0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("inputs", "words"), [
    (lambda x: [x, 1], r"\(Object contained in list at index 1 is not torch.tensor\)"),
    (lambda x: [None, x], r"\(Object contained in list at index 0 is not torch.tensor\)"),
    (lambda x: [x, x, [x]], r"\(Object contained in list at index 2 is not torch.tensor\)"),
    (lambda x: (x, x), r"\(Object is not list\)"),
    (lambda x: x, r"\(Object is not list\), but got <class 'torch.Tensor'>"),
])
@pytest.mark.parametrize("name", ["for_loop", "cond"])
def test_inputs_that_are_no_list_of_tensors_are_refused(inputs: Any, words: str, name: str) -> None:
    def body(x: torch.Tensor) -> Any:
        if name == "for_loop":
            return poptorch.for_loop(2, lambda *given: list(given), inputs(x))
        return poptorch.cond(x.sum() > 0, lambda *given: list(given), inputs(x), lambda *given: list(given), inputs(x))

    with pytest.raises(ValueError, match=words):
        poptorch.inferenceModel(body)(torch.ones(2))
