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
from torchipu._kernels.abi import philox
from torchipu.emulation.drawn import rounded_to_half, words_of
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
                following = carry * 0.3 + row
                return following, following + 0

            return torch._higher_order_ops.scan(step, torch.zeros_like(x[0]), x)

    torch.manual_seed(1)
    options = torchipu.Options(seed=3, stochastic_rounding=True)
    found = torchipu.check(Loop(), torch.randn(1, 17).half().expand(6, 17).contiguous(), options=options)
    assert found.is_equal, str(found)
    assert all(result.has_same_bits for result in found.results)


def test_philox_in_numpy_gives_the_published_answers() -> None:
    words = Words(0x299F31D0A4093822, 0x03707344, 0x13198A2E, 0x85A308D3)
    elements = np.arange(200)
    found = words_of(words, elements)
    for element in (0, 1, 17, 63, 64, 199):
        item, inside = divmod(element, 64)
        block = philox((16 * item + inside % 16, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))
        assert int(found[element]) == block[inside // 16]


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
