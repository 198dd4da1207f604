"""Random ops on the tiles: the bits of the host's plan, whichever elements a vertex has, judged by Philox in numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gfloat import RoundMode, round_ndarray
from gfloat.formats import format_info_binary16

import torchipu
from tests.numerics.test_rounding import ROUNDING_STREAMS, random_bits, spread
from torchipu.device.tiles.kernels import Numbering
from torchipu.device.tiles.machine import TileMachine
from torchipu.device.tiles.prepared import Alike
from torchipu.emulation.drawn import rounded_to_half, words_of
from torchipu.ir.graph import Op
from torchipu.optable.random_streams import Words
from torchipu.target import TARGETS


@pytest.fixture(params=[1, 3, 1472])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine with few tiles cuts results where no kernel ends."""
    monkeypatch.setitem(TARGETS, "small", replace(TARGETS["mk2"], num_tiles=request.param))
    return "small"


class Draws(torch.nn.Module):
    """Everything that draws."""

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> Any:
        return (
            torch.nn.functional.dropout(x, 0.3, training=True), torch.bernoulli(torch.sigmoid(x)),
            torch.rand_like(x), torch.rand(7, 11), torch.randn(5, 37), torch.randn_like(x),
            torch.empty_like(x).exponential_(2.0), torch.empty_like(x).uniform_(-1, 3),
            torch.empty_like(x).normal_(1, 2), torch.randint(-5, 1000, (300,)), torch.randperm(100),
            torch.multinomial(weights, 5, replacement=True), torch.multinomial(weights, 4),
        )


@pytest.mark.parametrize("half", [False, True])
def test_every_random_op_draws_the_same_bits(target: str, half: bool) -> None:
    torch.manual_seed(1)
    x, weights = torch.randn(13, 129), torch.rand(9, 140)
    if half:
        x = x.half()
    options = torchipu.Options(target=target, seed=3, stochastic_rounding=half)
    found = torchipu.check(Draws(), x, weights, options=options)
    assert found.is_equal, str(found)
    assert all(result.has_same_bits for result in found.results)
    assert not found.whole


def test_halves_are_rounded_by_the_numbers_of_their_elements(target: str) -> None:
    """Also where vertices have no range of a result: of a transposed sum, of columns, of what is gathered."""

    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return x * y, (x + 0.1).t().contiguous() / 3, torch.cat((x.exp(), y.sin()), 1), x[:, ::3] * 1.7, x.sum(0)

    torch.manual_seed(1)
    options = torchipu.Options(target=target, seed=3, stochastic_rounding=True)
    found = torchipu.check(Mixed(), torch.randn(33, 51).half(), torch.randn(33, 51).half(), options=options)
    assert found.is_equal, str(found)
    assert [result.has_same_bits for result in found.results[:4]] == [True] * 4


def test_halves_that_are_only_moved_are_not_rounded(target: str) -> None:
    """Nor what is chosen among them."""

    class Moves(torch.nn.Module):
        def forward(self, x: torch.Tensor, rows: torch.Tensor) -> Any:
            at = rows[:, None].expand(-1, x.shape[1])
            return (
                torch.nn.functional.embedding(rows, x), x.index_select(0, rows), x[rows, 1:], x.gather(0, at),
                x.scatter(0, at, 0.5), torch.cat((x, x[:3]), 0), x.t().contiguous(), x.flip(1), x.roll(2, 0),
                torch.nn.functional.pad(x, (1, 2)), x.sort(1).values, x.topk(5, 1).values, x.amax(0),
                torch.where(x > 0, x, -x), x.masked_fill(x > 0, 0.25), x.repeat(2, 1), x.clone(), x.tril(),
                torch.nn.functional.max_pool2d(x[None, None], 3, 2), torch.stack((x, x)), x.index_fill(0, rows, 0.5),
                x.repeat_interleave(2, 0), x.index_copy(0, torch.arange(3), x[5:8]), x.clamp(-0.5, 0.5),
            )

    torch.manual_seed(1)
    options = torchipu.Options(target=target, seed=3, stochastic_rounding=True)
    x, rows = torch.randn(33, 51).half(), torch.randint(0, 33, (20,))
    found = torchipu.check(Moves(), x, rows, options=options)
    assert found.is_equal, str(found)
    assert all(result.has_same_bits for result in found.results)
    with torch.no_grad():
        results = torchipu.InferenceStep(Moves(), options)(x, rows)
        for number, (result, wanted) in enumerate(zip(results, Moves()(x, rows), strict=True)):
            assert torch.equal(result, wanted), number


@pytest.mark.parametrize("name", ["F143", "F152"])
def test_bytes_are_rounded_by_the_numbers_of_their_elements(name: str) -> None:
    class Bytes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torchipu.fp8.quantise(x, name, stochastic=True)

    torch.manual_seed(1)
    found = torchipu.check(Bytes(), torch.randn(13, 129) * 3, options=torchipu.Options(seed=3))
    assert found.is_equal, str(found)
    assert found.results[0].has_same_bits


def test_replicas_round_their_shares_by_the_numbers_of_the_whole() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.Linear(9, 5)).half()
    shared = torchipu.TensorLocation(replicated_sharding=True)
    options = torchipu.Options(
        seed=3, stochastic_rounding=True, replicas=2, gradient_accumulation=2, weight_location=shared,
        optimiser_state_location=shared,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).float().square().mean()

    found = torchipu.check(Loss(), torch.randn(8, 7).half(), optimizer=optimizer, options=options)
    assert found.is_equal, str(found)
    assert not found.whole
    assert sum(result.has_same_bits for result in found.results) > len(found.results) // 2


def test_a_loop_draws_other_bits_in_each_trip() -> None:
    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
                return carry * 0.3 + row, row * 0.3

            return torch._higher_order_ops.scan(step, torch.zeros_like(x[0]), x)

    torch.manual_seed(1)
    options = torchipu.Options(seed=3, stochastic_rounding=True)
    x = torch.randn(1, 17).half().expand(6, 17).contiguous()
    found = torchipu.check(Loop(), x, options=options)
    assert found.is_equal, str(found)
    assert all(result.has_same_bits for result in found.results)
    with torch.no_grad():
        _, rows = torchipu.InferenceStep(Loop(), options)(x)
    assert len({tuple(row.tolist()) for row in rows}) == len(rows), "trips that compute the same are rounded alike"


def test_philox_in_numpy_gives_the_published_answers() -> None:
    """Of the file of known answers of Random123, philox4x32-10: with nothing, and with digits of pi."""
    nothing = words_of(Words(0, 0, 0, 0), np.array([0, 16, 32, 48]))
    np.testing.assert_array_equal(nothing, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
    element = 64 * (0x243F6A88 // 16) + 0x243F6A88 % 16 + 16 * np.arange(4)
    of_pi = words_of(Words(0x299F31D0A4093822, 0x03707344, 0x13198A2E, 0x85A308D3), element)
    np.testing.assert_array_equal(of_pi, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1])


def test_parts_of_an_op_round_half_partials_by_bits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over parts that were all rounded by the same bits would add up one error."""
    seeds: list[int] = []
    words_of_vertices = TileMachine._words_of

    def kept(machine: TileMachine, op: Op, alike: Alike, *rest: Any) -> Any:
        words = words_of_vertices(machine, op, alike, *rest)
        by_vertex = [at for at, stream in enumerate(alike.kernel.streams) if stream.numbering is Numbering.VERTEX]
        seeds.extend(words[:, by_vertex, 0].reshape(-1).tolist())
        return words

    monkeypatch.setattr(TileMachine, "_words_of", kept)
    torch.manual_seed(1)
    options = torchipu.Options(
        seed=3, stochastic_rounding=True, partials_type="half", available_memory={0: 0.005},
    )
    linear = torch.nn.Linear(2001, 300, bias=False).half()
    found = torchipu.check(linear, torch.randn(300, 2001).half(), options=options)
    assert found.is_equal, str(found)
    assert len(seeds) > TARGETS["mk2"].num_tiles, "no set runs in parts"
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("count", [1, 31, 1000])
def test_rounding_in_numpy_is_that_of_gfloat(count: int) -> None:
    values = spread(count).numpy()
    found = rounded_to_half(values, Words(11, 0, ROUNDING_STREAMS, 0), "infinity")
    wanted = round_ndarray(
        format_info_binary16, values.astype(np.float64), RoundMode.StochasticFastest, srbits=random_bits(count),
        srnumbits=16,
    )
    np.testing.assert_array_equal(found.astype(np.float64), wanted)


@pytest.mark.parametrize(("overflow", "wanted"), [
    ("infinity", [65504, np.inf, -np.inf, np.nan]), ("nan", [65504, np.nan, np.nan, np.nan]),
    ("saturate", [65504, 65504, -65504, np.nan]),
])
def test_what_overflows_becomes_what_options_say(overflow: str, wanted: list[float]) -> None:
    values = np.array([65504, 1e5, -np.inf, np.nan], np.float32)
    for words in (None, Words(1, 0, 2, 3)):
        np.testing.assert_array_equal(rounded_to_half(values, words, overflow), wanted)
