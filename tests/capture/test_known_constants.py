"""What depends on constants alone is known at capture: numbers, branches, and results of sizes that values decide."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchipu import CaptureError, InferenceStep, TrainStep, poptorch
from torchipu.capture.aot import capture_inference

X = torch.arange(12.0).reshape(3, 4).sin()
numbers = torch.tensor


def counted_down(y: Tensor) -> Tensor:
    count = numbers(3)
    while count > 0:
        y, count = y * 1.5, count - 1
    return y


def written(y: Tensor) -> Tensor:
    mask = torch.zeros(4, dtype=torch.bool)
    mask[1:3] = True
    return y[:, mask]


def chosen(y: Tensor) -> Tensor:
    mask = numbers([True, False])
    factor = numbers(0.0) or numbers(2.0)
    return y * factor if mask.any() and not mask.all() else y


def counted(y: Tensor) -> Tensor:
    values, places, counts = torch.unique(numbers([3, 1, 3]), return_inverse=True, return_counts=True)
    return y[:, values] * counts + y[:, places[:2]]


def asserted(y: Tensor) -> Tensor:
    assert torch.arange(3).sum() == 3
    return y * {3: 2.0}[int(numbers(3))]


def compared(y: Tensor) -> Tensor:
    same, alike = torch.equal(numbers([1, 2]), torch.arange(1, 3)), numbers([1.0]).allclose(torch.ones(1))
    return y * (2.0 if same and alike else 3.0)


FORMS: tuple[Callable[[Tensor], Tensor], ...] = (
    counted_down, written, chosen, counted, asserted, compared,
    lambda y: y * numbers([0.5, 3.0]).tolist()[1] * numbers(2.0).half().item(),
    lambda y: y.split(numbers([1, 3]).tolist(), 1)[1][:, numbers(1) : int(torch.arange(3).sum())],
    lambda y: y[:, numbers([1, 0, 3]).nonzero().squeeze(1)] * len(numbers([0, 1, 1]).nonzero()),
    lambda y: y[:, numbers([True, False, True, True])],
    lambda y: (y[:, :, None] * y[:, None])[:, torch.ones(4, 4).triu(1).bool()],
    lambda y: torch.masked_select(y, numbers([True, False, True, False])) * y.masked_select(y.new_ones(4) > 0)[:6],
    lambda y: y.repeat_interleave(numbers([1, 2, 0, 1]), 1), lambda y: y.tensor_split(numbers([1, 2]).cumsum(0), 1)[1],
    lambda y: y.sum() * F.one_hot(numbers([0, 2])), lambda y: y.sum() * torch.bincount(numbers([0, 2])),
)


class Applying(nn.Module):
    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        result = self.form(x * self.weight)
        return result.detach(), result.square().sum()


@pytest.mark.parametrize("form", FORMS)
def test_what_constants_decide_is_one_graph_with_eagers_values(form: Callable[[Tensor], Tensor]) -> None:
    model = Applying(form)
    expected, loss = model(X)
    gradient, = torch.autograd.grad(loss, model.weight)
    torch.testing.assert_close(InferenceStep(model)(X)[0], expected)

    trained = copy.deepcopy(model)
    TrainStep(trained, torch.optim.SGD(trained.parameters(), lr=1.0))(X)
    torch.testing.assert_close(1 - trained.weight.detach(), gradient, rtol=1e-4, atol=1e-5)

    torch._dynamo.reset()
    result, loss = torch.compile(model, backend="ipu", fullgraph=True)(X)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, model.weight)[0], gradient)


def test_the_program_has_what_constants_pick_and_no_call_that_picks() -> None:
    def form(y: Tensor) -> Tensor:
        return y[:, numbers([True, False, True, True])] * y[:, torch.unique(numbers([1, 1, 3]))].sum()

    captured = capture_inference(Applying(form), (X,))
    assert not captured.generic_targets
    assert sorted(value.tolist() for value in captured.constants.values()) == [[0, 2, 3], [1, 3]]


def test_masks_of_a_backward_are_places_too() -> None:
    model = Applying(lambda y: y[:, numbers([True, False, True, True])].exp())
    compiled = torch.compile(model, backend="ipu", options={"strict_ops": True})  # no record takes a mask
    compiled(X)[1].backward()
    assert model.weight.grad is not None


def test_what_is_written_with_unknown_values_is_known_no_longer() -> None:
    def form(y: Tensor) -> Tensor:
        values = torch.zeros(4)
        values[1:3] = y[0, :2]
        return y if values.sum() > 100 else -y

    with pytest.raises(Exception, match=r"[Dd]ata.dependent"):
        InferenceStep(Applying(form))(X)
    torch.testing.assert_close(torch.compile(Applying(form), backend="ipu")(X)[0], -X)


@pytest.mark.parametrize("make", [lambda: torch.rand(()), lambda: torch.empty(1).uniform_()])
def test_what_is_drawn_is_not_known(make: Callable[[], Tensor]) -> None:
    with pytest.raises(Exception, match=r"[Dd]ata.dependent"):
        InferenceStep(Applying(lambda y: y if make() > 2 else -y))(X)


PICKED: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda y: torch.arange(4)[y[0].argsort()], lambda y: torch.ones(3, 4)[:, y[0].argsort()],
    lambda y: torch.ones(3, 4)[numbers([0, 1]), y[0].argsort()[:2]],
    lambda y: torch.arange(4)[torch.multinomial(torch.ones(4), 2)],
    lambda y: torch.arange(4.0).index_select(0, y[0].argsort()), lambda y: torch.arange(4.0).gather(0, y[0].argsort()),
    lambda y: torch.take(torch.arange(4.0), y[0].argsort()), lambda y: F.embedding(y[0].argsort(), torch.ones(4, 2)),
    lambda y: torch.zeros(4).index_add(0, y[0].argsort(), torch.ones(4)),
    lambda y: torch.zeros(4).scatter(0, y[0].argsort(), 1.0),
    lambda y: torch.searchsorted(torch.arange(4.0), y[0]), lambda y: torch.bucketize(y[0], torch.arange(4.0)),
    lambda y: torch.ones(4).masked_scatter(y[0] > 0, torch.ones(4)),
    lambda y: torch.where(y[0] > 0, torch.ones(4), torch.zeros(4)), lambda y: torch.bernoulli(torch.full((4,), 0.5)),
    lambda y: torch.multinomial(torch.ones(4), 2), lambda y: torch.rand_like(torch.ones(4)),
)


@pytest.mark.parametrize("picked", PICKED)
def test_what_values_pick_of_a_constant_is_not_known(picked: Callable[[Tensor], Tensor]) -> None:
    # Operators say what their results look like with tensors like an operand that nobody has filled.
    with pytest.raises(Exception, match=r"[Dd]ata.dependent"):
        InferenceStep(Applying(lambda y: y if picked(y).sum() > 1e9 else -y))(X)


@pytest.mark.parametrize("empty", [torch.empty_like, lambda ones: ones.new_empty(3)])
def test_what_nobody_has_filled_is_not_known(empty: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(Exception, match=r"[Dd]ata.dependent"):
        InferenceStep(Applying(lambda y: y if empty(torch.ones(3)).sum() == 3.0 else -y))(X)


def test_rows_of_a_constant_that_are_drawn_are_those_of_eager() -> None:
    def form(y: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(2, 16, dtype=torch.int64)
        places = mask.nonzero()
        drawn = torch.multinomial(torch.ones(16), 16)
        chosen = torch.cat([places[places[:, 0] == row][drawn] for row in range(2)])
        return y[chosen[:, 0], chosen[:, 1]].view(2, 16), mask[chosen[:, 0], chosen[:, 1]]

    rows, ones = torch.compile(form, backend="ipu", fullgraph=True)(torch.arange(32.0).view(2, 16))
    assert torch.equal(rows.sort().values, torch.arange(32.0).view(2, 16))
    assert torch.equal(ones, torch.ones(32, dtype=torch.int64))


@pytest.mark.parametrize("sizes", [(3,), (300,), (2, 400)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, None])
def test_an_identity_of_any_size_is_a_constant(sizes: tuple[int, ...], dtype: torch.dtype | None) -> None:
    def masked(x: Tensor) -> Tensor:
        return torch.where(torch.eye(*sizes, dtype=dtype) > 0, x, 2 * x)

    x = torch.randn(sizes[0], sizes[-1])
    assert torch.equal(torch.compile(masked, backend="ipu", fullgraph=True)(x), masked(x))


RANGES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda y: torch.linspace(y[0, 0], y[0, 1], 4), lambda y: torch.linspace(0.0, y[0, 1], 4),
    lambda y: torch.linspace(y[0, 0], 3.0, 4), lambda y: torch.logspace(y[0, 0], y[0, 1], 4, base=2.0),
    lambda y: torch.logspace(y[0, 0].int(), 3, 3, base=2.0, dtype=torch.int32),
)


class Ranged(nn.Module):
    """Makes a range between values, and may ask for one of them."""

    def __init__(self, made: Callable[[Tensor], Tensor], *, asks: bool) -> None:
        super().__init__()
        self.made, self.asks = made, asks

    def forward(self, x: Tensor) -> Tensor:
        made = self.made(x)
        return x.sum() * (made[1].item() if self.asks else made)


@pytest.mark.parametrize("made", RANGES)
def test_a_range_between_values_is_none_of_them(made: Callable[[Tensor], Tensor]) -> None:
    model = Ranged(made, asks=False)
    step = InferenceStep(model)
    for x in (X + 1, X + 2):
        torch.testing.assert_close(step(x), model(x))
    with pytest.raises(CaptureError, match=r"the value on the host of .* depends on data"):
        InferenceStep(Ranged(made, asks=True))(X)


TABLE = torch.tensor([1.0, 3.0])


class Outside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * TABLE[1].item()


def test_a_tensor_of_outside_is_none_for_a_step_which_reads_it_at_each_call() -> None:
    with pytest.raises(CaptureError, match=r"reads a tensor that is a plain attribute or a global anew at each call"):
        InferenceStep(Outside())(X)
    torch.testing.assert_close(poptorch.inferenceModel(Outside())(X), X * 3)
