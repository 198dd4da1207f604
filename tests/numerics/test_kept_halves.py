"""Halves that an op chooses, or whose bits it only drops, are not rounded: they draw nothing, and lie in any order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.host.planned import planned_kernels
from torchipu.host.planner import Planner

KEPT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "relu": lambda x, y: torch.relu(x),
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "sign": lambda x, y: x.sign(),
    "maximum": torch.maximum,
    "fmin": torch.fmin,
    "clamp": lambda x, y: x.clamp(-0.5, 0.25),
    "clamp to tensors": lambda x, y: x.clamp(max=y),
    "threshold": lambda x, y: F.threshold(x, 0.1, 20.0),
    "nan_to_num": lambda x, y: x.nan_to_num(0.0, 2.0, -2.0),
    "where": lambda x, y: torch.where(x > y, x, -y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -65504.0),
    "floor": lambda x, y: x.floor(),
    "frac": lambda x, y: x.frac(),
    "copysign": torch.copysign,
    "hardshrink": lambda x, y: F.hardshrink(x, 0.3),
    "several": lambda x, y: torch.maximum(x.relu(), -y).clamp(max=1.0).trunc(),
    "of booleans": lambda x, y: (x > y).half(),
}
ROUNDED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": lambda x, y: x + y,
    "scaled": lambda x, y: x * 3,
    "clamp between halves": lambda x, y: x.clamp(-0.1, 0.3),
    "threshold between halves": lambda x, y: F.threshold(x, 0.25, 0.1),
    "softshrink": lambda x, y: F.softshrink(x, 0.3),
    "choice of a sum": lambda x, y: torch.where(x > y, x, x + y),
    "of floats": lambda x, y: (x.float() / 3).half(),
}


def values(*shape: int, seed: int) -> torch.Tensor:
    """Halves, among them extremes, subnormals, NaN and infinities."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()
    special = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 65504.0, -65504.0, 2.0**-24, -3 * 2.0**-24, 2047.0]
    made.view(-1)[: len(special)] = torch.tensor(special).half()[: made.numel()]
    return made


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many streams of random bits each plan has that is made."""
    found: list[int] = []
    collect = Planner._collect_outputs

    def collected(planner: Planner) -> object:
        found.append(len(planner.streams.rows))
        return collect(planner)

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
    return found


def compiled(function: Callable[..., torch.Tensor], **options: object) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", dynamic=False, options={"seed": 3, **options})


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("stochastic", [False, True])
def test_what_a_half_holds_is_kept_to_the_last_bit_and_draws_nothing(
    name: str, stochastic: bool, streams: list[int],
) -> None:
    x, y = values(7, 45, seed=1), values(7, 45, seed=2).flip(0, 1).contiguous()
    with torch.no_grad():
        mine = compiled(KEPT[name], stochastic_rounding=stochastic)(x, y)
    wanted = KEPT[name](x, y)
    assert mine.dtype is torch.half
    torch.testing.assert_close(mine, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(mine.signbit() & ~mine.isnan(), wanted.signbit() & ~wanted.isnan())
    assert streams == [0]


@pytest.mark.parametrize("name", ROUNDED)
def test_what_a_half_does_not_hold_is_rounded_by_random_bits(name: str, streams: list[int]) -> None:
    x, y = torch.rand(2, 3000, generator=torch.Generator().manual_seed(4)).half()
    with torch.no_grad():
        mine = compiled(ROUNDED[name], stochastic_rounding=True)(x, y).double()
    exact = ROUNDED[name](x.float(), y.float()).double() if name != "of floats" else x.double() / 3
    step = torch.maximum(exact.abs(), torch.tensor(2.0**-14)).log2().floor().exp2() * 2.0**-10
    assert bool(((mine - exact).abs() < step).all())
    assert streams == [1]
    inexact = exact != exact.half().double()
    if inexact.any():  # some go up, and some down, that nearest rounding would all send one way
        rounded = exact.half().double()
        assert bool((mine != rounded)[inexact].any())


@pytest.mark.parametrize("overflow", ["nan", "saturate"])
def test_what_becomes_of_an_overflow_is_looked_at_in_kept_halves_too(overflow: str) -> None:
    x = torch.tensor([torch.inf, -torch.inf, 1.0, torch.nan]).half()
    with torch.no_grad():
        before = compiled(lambda x: x + 0, half_overflow=overflow)(x)
        mine = compiled(torch.neg, half_overflow=overflow)(-x)
    torch.testing.assert_close(mine, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["relu", "several", "where"])
def test_kept_halves_lie_as_those_of_eager_pytorch_and_are_not_transposed(
    name: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = planned_kernels(monkeypatch)
    x, y = (values(33, 50, seed=seed).t() for seed in (5, 6))
    with torch.no_grad():
        mine, wanted = compiled(KEPT[name], stochastic_rounding=True)(x, y), KEPT[name](x, y)
    torch.testing.assert_close(mine, wanted, rtol=0, atol=0, equal_nan=True)
    assert mine.stride() == wanted.stride()
    assert set(names) == {"chain"}


@pytest.mark.parametrize("sizes", [(33, 50), (4, 4), (3, 70), (70, 3), (64, 129), (1, 9)])
def test_random_bits_are_those_of_the_place_whatever_the_order(sizes: tuple[int, int]) -> None:
    x = values(*sizes, seed=7).t()
    function = lambda x: x * 3 + 0.1  # noqa: E731
    with torch.no_grad():
        mine = compiled(function, stochastic_rounding=True)(x)
        row_major = compiled(function, stochastic_rounding=True)(x.contiguous())
        many = compiled(function, stochastic_rounding=True, host_threads=3)(x)
    torch.testing.assert_close(mine, row_major, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(mine, many, rtol=0, atol=0, equal_nan=True)
    if min(sizes) > 1:  # or strides mean nothing
        assert mine.stride() == function(x).stride()
