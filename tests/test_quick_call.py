"""Calls of a compiled graph that find nothing anew: they do as the first one, or leave it to that way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile

from torchipu.backend import program as programs
from torchipu.errors import ExecutionError
from torchipu.host.resting import resting


class Scores(nn.Module):
    """What a user thinks of an item."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8), nn.Embedding(40, 8)

    def forward(self, user: torch.Tensor, item: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores, and their mean."""
        found = (self.users(user) * self.items(item) * scale).sum(-1)
        return found, found.mean()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[programs.Program]:
    """Return the programs that a test makes, in order."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    found: list[programs.Program] = []
    begin = programs.Program.__init__

    def begun(self: programs.Program, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(programs.Program, "__init__", begun)
    return found


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randint(50, (6,)), torch.randint(40, (6,)), torch.randn(6, 8)


def close(found: Any, expected: Any) -> None:
    for mine, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, exact.to(mine.dtype))


@torch.no_grad()
def test_a_call_after_the_first_gives_the_same_in_memory_of_its_own(made: list[programs.Program]) -> None:
    model = Scores()
    compiled = torch.compile(model, backend="ipu")
    compiled(*inputs())
    assert made[0].quick is not None
    several = [(given := inputs(), compiled(*given)) for _ in range(4)]
    for given, found in several:
        close(found, model.double()(*given[:2], given[2].double()))
        model.float()
    assert len({found[0].data_ptr() for _, found in several}) == len(several)


LYING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "order": lambda scale: scale.t().contiguous().t(),
    "sign": torch._neg_view,
    "no memory": lambda scale: torch._efficientzerotensor(scale.shape, dtype=scale.dtype),
    "offset": lambda scale: torch.cat([scale, scale])[3:9],
}


@pytest.mark.parametrize("what", LYING)
def test_what_does_not_lie_as_before_is_seen(made: list[programs.Program], what: str) -> None:
    compiled = programs.Program.run
    model, given = Scores(), inputs()
    whole = torch.compile(model, backend="ipu")
    with torch.no_grad():
        whole(*given)
        (program,) = made
        assert program.quick is not None
        weights = [model.users.weight, model.items.weight]
        order = {id(tensor): tensor for tensor in (*weights, *given)}
        assert len(order) == 5
        other = LYING[what](given[2])
        # Dynamo would guard against some of these: the program itself is asked.
        arguments = [weights[0], given[0], weights[1], given[1], other]
        close(compiled(program, arguments), model(*given[:2], other))
        assert not arguments


@torch.no_grad()
def test_weights_that_are_others_or_lie_elsewhere_are_read(made: list[programs.Program]) -> None:
    model, given = Scores(), inputs()
    compiled = torch.compile(model, backend="ipu")
    for change in (lambda: None, lambda: None, lambda: model.users.weight.add_(1),
                   lambda: setattr(model.items.weight, "data", torch.randn(40, 8))):
        change()
        close(compiled(*given), model(*given))
    assert made[0].quick is not None


@torch.no_grad()
def test_frozen_weights_are_prepared_again_after_they_changed(made: list[programs.Program]) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), torch.randn(32, 64)
    compiled = torch.compile(model, backend="ipu", options={"frozen_weights": True})
    for number in range(6):
        if number % 2:
            model[0].weight.mul_(-2)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert made[0].quick is not None


@torch.no_grad()
def test_an_index_out_of_range_names_op_and_range_and_leaves_the_next_call_right(made: list[programs.Program]) -> None:
    model, given = Scores(), inputs()
    compiled = torch.compile(model, backend="ipu")
    compiled(*given)
    assert made[0].quick is not None
    with pytest.raises(ExecutionError, match=r"aten\.embedding\.default: .* expected 'indices' from 0 to 49"):
        compiled(given[0] + 50, *given[1:])
    close(compiled(*given), model(*given))


@torch.no_grad()
def test_a_profiler_sees_the_steps_of_later_calls_too(made: list[programs.Program]) -> None:
    model, given = Scores(), inputs()
    compiled = torch.compile(model, backend="ipu")
    compiled(*given)
    with profile() as recorded:
        compiled(*given)
    assert any(event.name.startswith("ipu::") for event in recorded.events() or ())


@torch.no_grad()
def test_nothing_runs_while_graphs_rest(made: list[programs.Program]) -> None:
    model, given = Scores(), inputs()
    compiled = torch.compile(model, backend="ipu")
    compiled(*given)
    with resting():
        assert not compiled(*given)[0].any()
    close(compiled(*given), model(*given))


def test_saved_tensors_and_gradients_are_those_of_each_call(made: list[programs.Program]) -> None:
    model = Scores()
    compiled = torch.compile(model, backend="ipu")
    for _ in range(4):
        several = [inputs(), inputs()]
        results = [compiled(*given)[0] for given in several]
        for given, result in zip(several, results, strict=True):
            weight = torch.randn(6)
            found = torch.autograd.grad((result * weight).sum(), list(model.parameters()))
            exact = torch.autograd.grad((model(*given)[0] * weight).sum(), list(model.parameters()))
            close(found, exact)
    assert [program.quick is not None for program in made] == [True, True]


def test_threads_that_call_the_same_graph_do_not_disturb_one_another(made: list[programs.Program]) -> None:
    model = Scores()
    compiled = torch.compile(model, backend="ipu")
    wrong: list[int] = []
    with torch.no_grad():
        compiled(*inputs())

    def call(number: int) -> None:
        with torch.no_grad():
            for _ in range(100):
                given = inputs()
                if not torch.allclose(compiled(*given)[0], model(*given)[0], atol=1e-5):
                    wrong.append(number)

    with ThreadPoolExecutor(3) as callers:
        list(callers.map(call, range(3)))  # raises what one of them has raised
    assert not wrong
    assert made[0].quick is not None


FIRST: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "with gaps": lambda x: torch.zeros(2, 6, 5, 12)[..., ::2].copy_(x),
    "expanded": lambda x: x[:1].expand(2, 6, 5, 6),
}


@torch.no_grad()
@pytest.mark.parametrize("first", FIRST)
def test_tensors_that_lie_as_those_of_the_first_call_are_quick(made: list[programs.Program], first: str) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.sigmoid() * 2 - y).sum(1)

    compiled = torch.compile(model, backend="ipu", dynamic=False)
    x, y = torch.randn(2, 6, 5, 6), torch.randn(2, 6, 5, 6)
    compiled(FIRST[first](x), y)
    (program,) = made
    assert program.quick is not None
    seen: list[bool] = []
    quick = program.quick

    def noted(arguments: Any) -> Any:
        found = quick(arguments)
        seen.append(found is not None)
        return found

    program.quick = noted  # type: ignore[assignment]
    for _ in range(2):
        given = FIRST[first](torch.randn(2, 6, 5, 6))
        close([compiled(given, y)], [model(given.double(), y.double())])
    assert seen == [True, True]
    # Dynamo would make another program of tensors that lie in another way: the program itself is asked.
    wide = torch.zeros(2, 6, 5, 18)[..., ::3].copy_(x)
    for given in (wide, x.double(), torch._neg_view(FIRST[first](x))):
        assert quick([given, y]) is None
        assert quick([y, given]) is None


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_a_copy_of_an_input_is_made_by_the_plan(dtype: torch.dtype, made: list[programs.Program]) -> None:
    compiled = torch.compile(lambda x: (x.clone(), x.clone()), backend="ipu")
    x = torch.randint(0, 2, (30, 40)).to(dtype)
    for _ in range(3):
        first, second = compiled(x)
        assert torch.equal(first, x)
        assert torch.equal(second, x)
        assert len({value.data_ptr() for value in (x, first, second)}) == 3
        first.zero_()
    assert made[0].quick is not None


class Dropped(nn.Module):
    """Embedded words, of which some elements are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 64)

    def forward(self, word: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.words(word), 0.25)


def test_random_bits_follow_torchs_generator_at_quick_calls_and_others(made: list[programs.Program]) -> None:
    model, word = Dropped(), torch.randint(50, (40,))
    compiled = torch.compile(model, backend="ipu")
    for _ in range(3):
        compiled(word).sum().backward()
    quick = made[0].quick
    assert quick is not None
    assert made[1].quick is not None
    drawn = []
    for is_quick in (True, False):
        made[0].quick = quick if is_quick else None
        torch.manual_seed(7)
        drawn.append([compiled(word) for _ in range(3)])
        drawn[-1].append(torch.rand(3))
    for mine, other in zip(*drawn, strict=True):
        assert torch.equal(mine, other)
    assert not torch.equal(drawn[0][0], drawn[0][1])
    kept = torch.stack(drawn[0][:3]) != 0
    assert abs(kept.float().mean() - 0.75) < 4 * (0.25 * 0.75 / kept.numel()) ** 0.5
    weight = model.words.weight[word]
    torch.testing.assert_close(drawn[0][0], torch.where(kept[0], weight / 0.75, 0.0))


def test_gradients_are_dropped_where_the_result_was(made: list[programs.Program]) -> None:
    model, word = Dropped(), torch.arange(40)
    compiled = torch.compile(model, backend="ipu")
    for _ in range(4):
        model.zero_grad()
        result = compiled(word)
        result.sum().backward()
        assert model.words.weight.grad is not None
        torch.testing.assert_close(model.words.weight.grad[:40], (result != 0) / 0.75)
    assert [program.quick is not None for program in made] == [True, True]


def test_a_quick_call_that_fails_has_drawn_nothing(made: list[programs.Program]) -> None:
    model, word = Dropped(), torch.randint(50, (40,))
    compiled = torch.compile(model, backend="ipu")
    for _ in range(2):
        compiled(word).sum().backward()
    assert made[0].quick is not None
    before = torch.get_rng_state()
    with pytest.raises(ExecutionError, match="expected 'indices' from 0 to 49"):
        compiled(word + 50)
    assert torch.equal(torch.get_rng_state(), before)
    compiled(word)
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_seed_of_the_users_counts_its_calls(made: list[programs.Program]) -> None:
    model, word = Dropped(), torch.randint(50, (40,))
    found = []
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="ipu", options={"seed": 5})
        found.append([compiled(word) for _ in range(3)])
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)
    assert not torch.equal(found[0][0], found[0][2])
