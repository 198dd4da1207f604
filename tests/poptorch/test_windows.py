"""What is read at a place that only the program knows is a view of its base, as in eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchipu import poptorch

X = torch.arange(24.0).reshape(4, 6)
Model = Callable[[torch.Tensor, torch.Tensor], Any]


def _set(x: torch.Tensor, index: Any, value: Any) -> Any:
    x[index] = value
    return x


def _after(read: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *writes: Callable[..., Any]) -> Model:
    """Return a model that reads a window, then writes into its base, or into it, then returns both."""
    def model(x: torch.Tensor, i: torch.Tensor) -> Any:
        window = read(x, i)
        for write in writes:
            write(x, window, i)
        return x, window, window * 1

    return model


READS = {
    "row": lambda x, i: x[i], "column": lambda x, i: x[:, i], "element": lambda x, i: x[i, i],
    "run": lambda x, i: x[:, i : i + 2], "run of a row": lambda x, i: x[i, i : i + 2],
    "window of a window": lambda x, i: x[i : i + 1][:, i : i + 2], "view of a window": lambda x, i: x[i].view(2, 3),
    "window of a view": lambda x, i: x.view(2, 2, 6)[:, i - 1], "of a transposed one": lambda x, i: x.t()[i : i + 1],
    "select": lambda x, i: x.select(1, i), "narrow": lambda x, i: x.narrow(1, i, 2),
    "unbound": lambda x, i: x[i : i + 1].unbind(0)[0], "detached": lambda x, i: x[i].detach(),
    "copied": lambda x, i: x[i].clone(), "same type": lambda x, i: x[i].float(),
    "contiguous": lambda x, i: x[i].contiguous(), "copied by contiguous": lambda x, i: x[:, i : i + 2].contiguous(),
    "copied by reshape": lambda x, i: x[:, i : i + 2].reshape(-1), "flattened": lambda x, i: x[i : i + 1].flatten(),
    "of a transposed one, flattened": lambda x, i: x.t()[i : i + 1].flatten(),
}
WRITES = {
    "base": (lambda x, w, i: x.add_(1),), "window": (lambda x, w, i: w.mul_(2),),
    "base, window": (lambda x, w, i: x.add_(1), lambda x, w, i: w.mul_(2)),
    "window, base, window": (lambda x, w, i: w.add_(5), lambda x, w, i: x.neg_(), lambda x, w, i: w.mul_(2)),
    "another window": (lambda x, w, i: x[i].add_(7), lambda x, w, i: w.mul_(2), lambda x, w, i: _set(x, i - 1, 3.0)),
    "view of the base": (lambda x, w, i: x.view(-1)[3:20].zero_(), lambda x, w, i: w.sub_(1)),
    "data": (lambda x, w, i: x.data.add_(1), lambda x, w, i: w.data.mul_(2)),
    "unseen by autograd": (torch.no_grad()(lambda x, w, i: x.add_(1)), torch.no_grad()(lambda x, w, i: w.mul_(2))),
    "by a function of torch": (
        lambda x, w, i: torch.nn.init.constant_(x, 3.0), lambda x, w, i: torch.nn.functional.relu(w, inplace=True),
    ),
    "in lists": (lambda x, w, i: torch._foreach_add_([x], 1.0), lambda x, w, i: torch._foreach_mul_([w], 2.0)),
    "out": (lambda x, w, i: torch.add(x.clone(), 1, out=x), lambda x, w, i: torch.add(w.clone(), 1, out=w)),
    "masked": (lambda x, w, i: _set(x, x > 8, 0.0), lambda x, w, i: _set(w, w > 3, 1.0)),
}


def assert_as_eager(model: Model, numbers: tuple[int, ...] = (1, 2)) -> None:
    """Compare one program with eager PyTorch for each number, of an input and of what is computed from it."""
    for is_input in (False, True):
        step = poptorch.inferenceModel(lambda x, i, is_input=is_input: model(x if is_input else x * 1, i))
        for number in numbers:
            mine, theirs = X.clone(), X.clone()
            expected = model(theirs if is_input else theirs * 1, torch.tensor(number))
            torch.testing.assert_close(step(mine, torch.tensor(number)), expected, rtol=0, atol=0)
            assert mine.equal(theirs)


@pytest.mark.parametrize("writes", WRITES)
@pytest.mark.parametrize("read", READS)
def test_a_window_and_its_base_see_what_is_written_into_either(read: str, writes: str) -> None:
    assert_as_eager(_after(READS[read], *WRITES[writes]))


def _other_tensor(x: torch.Tensor, i: torch.Tensor) -> Any:
    other = x * 2
    return _set(other, i, x[i]), x


def _index_moves(x: torch.Tensor, i: torch.Tensor) -> Any:
    place = i.clone()
    row = x[place]
    place += 1
    return _set(x, place, row)


def _rows_turn(x: torch.Tensor, i: torch.Tensor) -> Any:
    last, this = x[i - 1], x[i]
    for _ in range(3):
        last += this
        this *= 2
    return x, last, this


def _index_is_a_window(x: torch.Tensor, i: torch.Tensor) -> Any:
    places = torch.arange(3, device=x.device) + i * 0
    place = places[i - 1]
    places += 1
    return x[place] + 0, place.float()


def _written_while_iterated(x: torch.Tensor, i: torch.Tensor) -> Any:
    for row in x[i : i + 1]:
        x += 1
        row *= 2
    return x


def _added_to(x: torch.Tensor, i: torch.Tensor) -> Any:
    x[i, i] += 1
    x[i][i] -= 3
    x[i : i + 1][0][1] = 9
    return x


@pytest.mark.parametrize("model", [
    _other_tensor, _index_moves, _rows_turn, _index_is_a_window, _written_while_iterated, _added_to,
    lambda x, i: {"row": _after(READS["row"], *WRITES["base"])(x, i)[1], "rest": [x]},
    lambda x, i: (x[i].expand(4, 6) + x, _set(x, i, x[0])), lambda x, i: x[0].expand(4, 6)[i] + 1,
])
def test_places_in_longer_programs(model: Model) -> None:
    assert_as_eager(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.bool])
def test_windows_of_other_types(dtype: torch.dtype) -> None:
    def model(x: torch.Tensor, i: torch.Tensor) -> Any:
        typed = (x > 7).to(dtype)
        row = typed[i]
        typed |= x.to(dtype) > 20 if dtype == torch.bool else 0
        row.copy_(typed[0])
        return typed, row

    def of_numbers(x: torch.Tensor, i: torch.Tensor) -> Any:
        typed = x.to(dtype)
        row = typed[i]
        typed += 1
        row *= 2
        return typed, row

    assert_as_eager(model if dtype == torch.bool else of_numbers)


@pytest.mark.parametrize("control", [
    lambda x, i, row: poptorch.for_loop(1, lambda t: [t + row], [x])[0],
    lambda x, i, row: poptorch.cond(i > 1, lambda t: [t + row], [x], lambda t: [t - row], [x])[0],
    lambda x, i, row: poptorch.for_loop(
        1, lambda t: [_after(READS["row"], *WRITES["base, window"])(t * 1, i)[0]], [x],
    )[0],
])
def test_bodies_see_windows_as_they_are_and_their_own_end_with_them(control: Any) -> None:
    def model(x: torch.Tensor, i: torch.Tensor) -> Any:
        row = x[i]
        x += 1
        result = control(x, i, row)
        x += 1
        return result, row, x

    assert_as_eager(model)


class _Table(torch.nn.Module):
    """A buffer whose rows are read and written in bodies."""

    def __init__(self, use: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))
        self.use = use

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        return self.use(self.table, x, i)


def _row_grows(table: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
    row = table[i]
    table += 1
    row += x
    return [x * 2]


def _looped(table: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> Any:
    if poptorch.isRunningOnIpu():
        return poptorch.for_loop(3, lambda t: _row_grows(table, t, i), [x])[0], table[i]
    for _ in range(3):
        (x,) = _row_grows(table, x, i)
    return x, table[i].clone()


@pytest.mark.parametrize("use", [
    lambda table, x, i: _row_grows(table, x, i)[0] + table[0], _looped,
    lambda table, x, i: poptorch.cond(i > 1, lambda t: _row_grows(table, t, i), [x], lambda t: [t * 1], [x])[0],
    lambda table, x, i: table.copy_(torch.cat([table[1:], table[i][None]])) + x,
])
def test_buffers_keep_what_is_written_through_windows(use: Any) -> None:
    model = _Table(use)
    eager = copy.deepcopy(model)
    step = poptorch.inferenceModel(model)
    for number in (1, 2, 0):
        x, i = torch.full((4,), number + 1.0), torch.tensor(number)
        torch.testing.assert_close(step(x, i), eager(x, i), rtol=0, atol=0)
    step.copyWeightsToHost()
    assert model.table.equal(eager.table)


@pytest.mark.parametrize("control", [
    lambda table, x, part: poptorch.for_loop(2, lambda t: [(table.add_(1), t + part)[1]], [x])[0],
    lambda table, x, part: poptorch.cond(
        x.sum() > 0, lambda t: [(table.add_(1), t + part)[1]], [x], lambda t: [t * 1], [x],
    )[0],
])
def test_a_body_that_writes_what_an_earlier_window_is_part_of_is_refused(control: Any) -> None:
    for read in (lambda table, i: table[i], lambda table, i: table[i : i + 1][0]):
        model = _Table(lambda table, x, i, read=read: control(table, x, read(table, i)))
        with pytest.raises(poptorch.Error, match="read it within the body"):
            poptorch.inferenceModel(model)(torch.ones(4), torch.tensor(1))


class _Gated(torch.nn.Module):
    """A row is scaled by a weight, in place or through a window whose base changes."""

    def __init__(self, write: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.write = torch.nn.Linear(6, 6), write

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        hidden = self.linear(x)
        row = hidden[i]
        self.write(hidden, row, i, self.linear.bias)
        return hidden * 1, poptorch.identity_loss((hidden * x).sum() + (row * row).mean(), reduction="sum")


@pytest.mark.parametrize("write", [
    lambda hidden, row, i, bias: hidden.mul_(2), lambda hidden, row, i, bias: row.mul_(bias),
    lambda hidden, row, i, bias: (hidden.add_(bias), row.mul_(3), hidden[i - 1].sub_(row)),
    lambda hidden, row, i, bias: (row.add_(bias), _set(hidden, (slice(None), i), 0.5)),
])
def test_gradients_go_through_windows(write: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = _Gated(write)
    eager = copy.deepcopy(model)
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.01)
    for number in (1, 2, 1):
        x = torch.randn(4, 6)
        hidden, loss = step(x, torch.tensor(number))
        optimizer.zero_grad()
        expected, wanted = eager(x, torch.tensor(number))
        wanted.backward()
        optimizer.step()
        torch.testing.assert_close((hidden, loss), (expected.detach(), wanted.detach()))
    step.copyWeightsToHost()
    torch.testing.assert_close(dict(model.named_parameters()), dict(eager.named_parameters()))


def test_a_window_with_a_step_is_read_anew_but_never_written() -> None:
    def model(x: torch.Tensor, i: torch.Tensor) -> Any:
        every_second = x[:, i : i + 2 : 2]
        x += 1
        return every_second * 1

    assert_as_eager(model)
    for write in (lambda w: w.add_(1), lambda w: w.view(-1).zero_(), lambda w: torch.add(w, 1, out=w)):
        with pytest.raises(poptorch.Error, match="slices with step size other than 1"):
            poptorch.inferenceModel(lambda x, i, write=write: write((x * 1)[:, i : i + 2 : 2]))(X, torch.tensor(1))


class _Renormed(torch.nn.Module):
    """Keeps its weight small by assigning its data, as convolutions with a constraint do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        self.linear.weight.data = torch.renorm(self.linear.weight.data, p=2, dim=0, maxnorm=0.5)
        output = self.linear(x)
        self.seen.data = self.seen + output.detach().mean(0)
        return output, torch.nn.functional.mse_loss(output, y)


def test_data_that_forward_assigns_is_kept() -> None:
    torch.manual_seed(0)
    model = _Renormed()
    eager = copy.deepcopy(model)
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(3):
        x, y = torch.randn(5, 4), torch.randn(5, 3)
        output, loss = step(x, y)
        optimizer.zero_grad()
        expected, wanted = eager(x, y)
        wanted.backward()
        optimizer.step()
        torch.testing.assert_close((output, loss), (expected.detach(), wanted.detach()))
    step.copyWeightsToHost()
    torch.testing.assert_close(model.state_dict(), eager.state_dict())


@pytest.mark.parametrize(("assign", "words"), [
    (lambda x, i: setattr(x[1], "data", torch.ones(6)), "view"), (lambda x, i: setattr(x[i], "data", x[0]), "view"),
    (lambda x, i: setattr(x, "data", x.half()), "type"), (lambda x, i: setattr(x, "data", x[0]), "shape"),
])
def test_data_that_cannot_be_assigned_is_refused(assign: Any, words: str) -> None:
    with pytest.raises(poptorch.Error, match=rf"tensor\.data = value .*{words}"):
        poptorch.inferenceModel(lambda x, i: (assign(x, i), x)[1])(X.clone(), torch.tensor(1))


VALUES = {"number": lambda x: 7.0, "element": lambda x: x[1, 2] * 2, "row": lambda x: x[0] * 2}


@pytest.mark.parametrize("name", VALUES)
def test_where_one_truth_value_is_the_index_all_is_written_or_nothing(name: str) -> None:
    def model(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[i.sum() > 1] = VALUES[name](x)
        return y

    step = poptorch.inferenceModel(model)
    for number in (1, 2):
        torch.testing.assert_close(step(X, torch.tensor(number)), model(X, torch.tensor(number)), rtol=0, atol=0)
