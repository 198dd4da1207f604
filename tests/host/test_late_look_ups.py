"""Products of looked-up rows with frozen weights: one for every row of the table, looked up at each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

import torchipu
from tests.raised import our_error
from torchipu.capture.host_calls import register_host_function
from torchipu.host import late_look_ups, planner

WORDS = torch.randint(60, (5, 7), generator=torch.Generator().manual_seed(1))


class Read(nn.Module):
    """Words, moved about, and a layer over them: int64 `[5, 7]` to floats."""

    def __init__(self, move: Callable[[Tensor], Tensor], bias: bool = True, words: int = 60, width: int = 128) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.move = move
        self.words, self.layer = nn.Embedding(words, width), nn.Linear(width, 24, bias=bias)

    def forward(self, words: Tensor) -> Tensor:
        return self.layer(self.move(self.words(words)))


MOVES = {
    "as it lies": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "rows": lambda x: x.transpose(0, 1).reshape(-1, x.shape[-1]),
    "pairs": lambda x: x.transpose(1, 0).reshape(5, 7, -1).transpose(-2, -3),
}


def made_by(model: nn.Module, *inputs: Tensor, **options: object) -> tuple[Tensor, list[tuple[int, ...]]]:
    """Return what a frozen step makes, and the sizes of the tables that it looks rows up in."""
    chosen = torchipu.Options(frozen_weights=True, host_threads=1, **options)  # type: ignore[arg-type]
    step = torchipu.InferenceStep(model, chosen)
    result = step(*inputs)
    graph = planner.Planner(step.compiled.graph, frozen=step.compiled.graph.inputs[:-1]).graph
    return result, [op.needed("weight").shape for op in graph.ops if op.kind == "embedding"]


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("move", MOVES)
def test_rows_of_products_are_looked_up_and_equal_eager_in_float64(move: str, bias: bool) -> None:
    model = Read(MOVES[move], bias)
    result, tables = made_by(model, WORDS)
    assert tables == [(60, 24)]
    torch.testing.assert_close(result, model.double()(WORDS).float(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_values_are_those_of_products_after_the_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model, words = Read(MOVES["as it lies"], words=200), torch.randint(200, (20, 20))
    late, _ = made_by(model, words)
    monkeypatch.setattr(late_look_ups, "MOST_BYTES", 0)
    result, tables = made_by(model, words)
    assert tables == [(200, 128)]
    assert torch.equal(result, late)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"stochastic_rounding": True, "seed": 3}], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("move", MOVES)
def test_half_results_are_those_of_products_after_the_look_up(
    monkeypatch: pytest.MonkeyPatch, move: str, bias: bool, options: dict[str, object]
) -> None:
    model = Read(MOVES[move], bias).half()
    late, tables = made_by(model, WORDS, **options)
    assert tables == [(60, 24)]
    assert late.dtype is torch.half
    exact = model.double()(WORDS)
    # The product's rounding, and that of its sum with the bias where the layer reads rows that do not adjoin.
    assert ((late - exact).abs() <= exact.abs().clamp(min=1) * 2**-9).all()
    monkeypatch.setattr(late_look_ups, "MOST_BYTES", 0)
    result, tables = made_by(model.half(), WORDS, **options)
    assert tables == [(60, 128)]
    if not (bias and options):
        assert torch.equal(result, late)
    else:  # the bias is added first or last: sums that differ in their last bit may be rounded to neighbouring halves
        assert (result != late).float().mean() <= 0.01
        assert ((result.float() - late.float()).abs() <= late.float().abs() * 2**-10).all()


@torch.no_grad()
def test_what_is_added_to_half_products_may_change_from_call_to_call() -> None:
    class Biased(Read):
        def forward(self, words: Tensor) -> Tensor:
            # Rounded at random, as the sum of the two biases of a recurrent layer is.
            return nn.functional.linear(self.words(words), self.layer.weight, self.layer.bias + self.layer.bias.exp())

    model = Biased(MOVES["as it lies"]).half()
    result, tables = made_by(model, WORDS, stochastic_rounding=True, seed=3)
    assert tables == [(60, 24)]
    exact = model.double()(WORDS)
    assert ((result - exact).abs() <= exact.abs().clamp(min=1) * 2**-8).all()


@torch.no_grad()
def test_products_with_half_partials_stay_behind_look_ups() -> None:
    model = Read(MOVES["as it lies"]).half()
    _, tables = made_by(model, WORDS, partials_type="half")
    assert tables == [(60, 128)]


@torch.no_grad()
@pytest.mark.parametrize("options", [{"frozen_weights": False}, {}], ids=["weights that change", "narrow rows"])
def test_products_stay_behind_look_ups_where_that_is_no_gain(options: dict[str, bool]) -> None:
    model = Read(MOVES["as it lies"], width=128 if options else 64)
    step = torchipu.InferenceStep(model, torchipu.Options(frozen_weights=not options))
    torch.testing.assert_close(step(WORDS), model(WORDS), rtol=1e-4, atol=1e-5)
    graph = step.compiled.graph
    kept = planner.Planner(graph, frozen=() if options else graph.inputs[:-1]).graph
    assert [op.kind for op in kept.ops] == [op.kind for op in graph.ops]


@torch.no_grad()
@pytest.mark.parametrize(("rows", "table"), [(1, (60, 24)), (35, (60, 128))])
def test_what_is_added_to_each_row_by_itself_keeps_the_product_behind_the_look_up(
    rows: int, table: tuple[int, int],
) -> None:
    class Added(Read):
        def __init__(self) -> None:
            super().__init__(MOVES["as it lies"])
            self.added = nn.Parameter(torch.randn(rows, 24))

        def forward(self, words: Tensor) -> Tensor:
            return torch.addmm(self.added, self.words(words).view(35, 128), self.layer.weight.T)

    model = Added()
    result, tables = made_by(model, WORDS)
    assert tables == [table]
    torch.testing.assert_close(result, model.double()(WORDS).float(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("factors", [{"alpha": 3}, {"beta": 2}])
def test_half_products_that_are_scaled_stay_behind_look_ups(factors: dict[str, int]) -> None:
    class Scaled(Read):
        def forward(self, words: Tensor) -> Tensor:
            return torch.addmm(self.layer.bias, self.words(words).view(35, 128), self.layer.weight.T, **factors)

    model = Scaled(MOVES["as it lies"]).half()
    result, tables = made_by(model, WORDS)
    assert tables == [(60, 128)]
    exact = model.double()(WORDS)
    assert ((result - exact).abs() <= exact.abs().clamp(min=1) * 2**-9).all()


@torch.no_grad()
@pytest.mark.parametrize(("spare", "table"), [(0, (60, 24)), (-1, (60, 128))])
def test_products_of_all_rows_take_no_more_than_they_may(
    spare: int, table: tuple[int, int], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_look_ups, "MOST_BYTES", 4 * 60 * 24 + spare)
    _, tables = made_by(Read(MOVES["as it lies"]), WORDS)
    assert tables == [table]


@torch.no_grad()
@pytest.mark.parametrize(("is_random", "table"), [(False, (60, 24)), (True, (60, 128))])
def test_products_with_what_is_rounded_anew_in_each_call_stay_behind_look_ups(
    is_random: bool, table: tuple[int, int],
) -> None:
    class Scaled(Read):
        def forward(self, words: Tensor) -> Tensor:
            return nn.functional.linear(self.words(words), self.layer.weight * 0.3)

    options = {"stochastic_rounding": True, "seed": 3} if is_random else {}
    _, tables = made_by(Scaled(MOVES["as it lies"]).half(), WORDS, **options)
    assert tables == [table]


ANEW: dict[str, Callable[[Tensor], Tensor]] = {
    "of a function on the host": lambda weight: torch.ops.torchipu.call_host(
        [weight], "more at each call", "{}", f'[[{list(weight.shape)}, "float32"]]',
    )[0],
    "chosen by a condition": lambda weight: torch.cond(weight.sum() > 0, torch.neg, torch.abs, (weight,)),
    "drawn at random": lambda weight: nn.functional.dropout(weight, 0.5, training=True),
}


@torch.no_grad()
@pytest.mark.whole
@pytest.mark.parametrize("name", ANEW)
def test_products_with_what_each_call_makes_anew_stay_behind_look_ups(name: str) -> None:
    """All rows of the table would be multiplied in each call, and not once for all of them."""

    class Made(Read):
        def forward(self, words: Tensor) -> Tensor:
            return nn.functional.linear(self.words(words), ANEW[name](self.layer.weight))

    called: list[Tensor] = []

    def more_at_each_call(inputs: Sequence[Tensor], _: Mapping[str, object]) -> list[Tensor]:
        called.append(inputs[0])
        return [len(called) * inputs[0]]

    register_host_function("more at each call", more_at_each_call)
    _, tables = made_by(Made(MOVES["as it lies"]), WORDS)
    assert tables == [(60, 128)]


@torch.no_grad()
def test_a_table_without_rows_has_no_products() -> None:
    result, tables = made_by(Read(MOVES["as it lies"], words=0), WORDS[:0])
    assert result.shape == (0, 7, 24)
    assert tables == [(0, 128)]


@torch.no_grad()
def test_two_layers_and_another_reader_share_a_look_up() -> None:
    class Both(Read):
        def forward(self, words: Tensor) -> Tensor:
            x = self.words(words).transpose(0, 1)
            return self.layer(x) + self.layer(-x) + self.layer(x).flip(0) + x.mean()

    model = Both(MOVES["as it lies"])
    result, tables = made_by(model, WORDS)
    assert (60, 128) in tables
    assert (60, 24) in tables
    torch.testing.assert_close(result, model(WORDS), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_new_weights_are_multiplied_again() -> None:
    torch._dynamo.reset()
    model = Read(MOVES["transposed"])
    compiled = torch.compile(model, backend="ipu", options={"frozen_weights": True})
    compiled(WORDS)
    model.words.weight.mul_(2)
    torch.testing.assert_close(compiled(WORDS), model(WORDS), rtol=1e-4, atol=1e-5)
    model.layer.bias.add_(1)
    torch.testing.assert_close(compiled(WORDS), model(WORDS), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_word_beyond_the_table_is_told_as_ever() -> None:
    model = Read(MOVES["transposed"])
    with pytest.raises(Exception, match="60") as raised:
        made_by(model, torch.full((5, 7), 60))
    assert our_error(raised.value) is not None
    assert "embedding" in str(raised.value)
