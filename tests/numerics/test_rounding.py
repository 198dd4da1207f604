"""Rounding of float32 to half: to nearest by torch's own conversion, stochastic by gfloat with the same random bits."""

from typing import Any

import numpy as np
import pytest
import torch
from gfloat import RoundMode, round_ndarray
from gfloat.formats import format_info_binary16

from torchipu._kernels.abi import run_kernel
from torchipu._kernels.table.random import RANDOM_WORDS, RandomInts
from torchipu.errors import OptionsError
from torchipu.options import Options

ROUNDING_STREAMS = 1 << 31


def to_half(**options):
    torch._dynamo.reset()
    return torch.compile(lambda x: x.half(), backend="ipu", dynamic=False, options={"seed": 11, **options})


def random_bits(count, *, seed=11, replica=0, stream=0, micro_batch=0):
    """Return the 16 random bits of each element: a hash of its number, keyed by two words of the generator."""
    keys = []
    for number in (0xFFFFFFFF, ROUNDING_STREAMS + stream):
        state = torch.tensor([seed, replica, number, micro_batch])
        block = torch.empty(64, dtype=torch.int32)
        run_kernel(RANDOM_WORDS, [block.data_ptr(), state.data_ptr()], RandomInts(64), items=1)
        keys.append(int(block[0]) & 0xFFFFFFFF)
    first, second = keys
    places = np.arange(count, dtype=np.uint32) * np.uint32(0xB5297A4D) + np.uint32(first)
    words = (places ^ places >> np.uint32(12)) * (places ^ np.uint32(second))
    return (words >> np.uint32(16)).astype(np.int64)


def spread(count, *, seed=0):
    """Return floats of all binades that halves have, and some beyond, of both signs."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-28, 18, (count,), generator=generator).float()
    values = (1 + torch.rand(count, generator=generator)) * torch.exp2(exponents)
    return torch.where(torch.rand(count, generator=generator) < 0.5, -values, values)


def test_halves_are_fixed_points_of_both_roundings():
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.half)
    for options in ({}, {"stochastic_rounding": True}):
        rounded = to_half(**options)(every.float())
        same = (rounded.view(torch.int16) == every.view(torch.int16)) | (rounded.isnan() & every.isnan())
        assert bool(same.all())


@pytest.mark.parametrize("overflow", ["infinity", "nan", "saturate"])
def test_nearest_equals_the_conversion_of_torch_over_a_dense_sweep(overflow):
    bits = torch.arange(-(1 << 31), 1 << 31, 4099, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    values = torch.where(values.abs() < 2.0**-126, 0.0, values)  # the device flushes subnormal floats
    wanted = values.half()
    beyond = wanted.isinf()
    if overflow == "nan":
        wanted[beyond] = torch.nan
    elif overflow == "saturate":
        wanted[beyond] = torch.where(values[beyond] > 0, 65504.0, -65504.0).half()
    found = to_half(half_overflow=overflow)(values)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.thorough  # beside the sweep above
def test_nearest_equals_the_conversion_of_torch_for_every_float():
    rounding, chunk = to_half(host_threads=1), 1 << 19  # a chunk and its results stay in the caches of a processor
    offsets, bits = torch.arange(chunk, dtype=torch.int32), torch.empty(chunk, dtype=torch.int32)
    values, wanted = bits.view(torch.float32), torch.empty(chunk, dtype=torch.half)
    for first in range(-(1 << 31), 1 << 31, chunk):
        torch.add(offsets, first, out=bits)
        if first & 0x7FFFFFFF < 1 << 23:
            values[values.abs() < 2.0**-126] = 0.0  # the device flushes subnormal floats
        found = rounding(values)
        wanted.copy_(values)
        if not torch.equal(found.view(torch.int16), wanted.view(torch.int16)):
            differ = found.view(torch.int16) != wanted.view(torch.int16)
            assert bool((found[differ].isnan() & wanted[differ].isnan()).all()), first


@pytest.mark.parametrize("count", [1, 127, 128, 1000, 70_001, 300_001])
def test_stochastic_rounding_equals_gfloat_given_the_same_bits(count):
    values = spread(count)
    found = to_half(stochastic_rounding=True)(values)
    wanted = round_ndarray(
        format_info_binary16, values.double().numpy(), RoundMode.StochasticFastest, srbits=random_bits(count),
        srnumbits=16,
    )
    assert np.array_equal(found.double().numpy(), wanted)


def of_kind(kind, count):
    """Return floats of normal halves alone, of subnormal ones alone, or of both in some order, or with zeros."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(count, generator=generator)
    places = torch.arange(count)
    if kind == "normal halves":
        return values.abs().clamp(min=2.0**-14) * values.sign()
    if kind == "subnormal halves":
        return values.clamp(-3.9, 3.9) * 2.0**-16
    if kind == "now these, now those":
        return torch.where(places // 1000 % 2 == 0, values, values * 2.0**-18)
    if kind == "the odd one":
        return torch.where(places % 311 == 7, values * 2.0**-16, values)
    if kind == "around the least normal half":
        return (2.0**-14 + values * 2.0**-25) * values.sign()
    return torch.where(places % 5 == 0, 0.0, values)


@pytest.mark.parametrize("count", [64, 480, 4000, 70_001])
@pytest.mark.parametrize(
    "kind",
    [
        "normal halves", "subnormal halves", "now these, now those", "the odd one", "around the least normal half",
        "zeros among others",
    ],
)
def test_neighbours_do_not_change_how_a_value_is_rounded(kind, count):
    """Values that are alike are rounded in a way of their own: all have to give what gfloat does."""
    values = of_kind(kind, count)
    wanted = round_ndarray(
        format_info_binary16, values.double().numpy(), RoundMode.StochasticFastest, srbits=random_bits(count),
        srnumbits=16,
    )
    assert np.array_equal(to_half(stochastic_rounding=True)(values).double().numpy(), wanted)
    rounded_on_the_way = torch.compile(
        lambda x: x.half().float() * 2, backend="ipu", dynamic=False, options={"seed": 11, "stochastic_rounding": True},
    )
    assert np.array_equal(rounded_on_the_way(values).double().numpy(), wanted * 2)


def test_infinities_and_any_nan_stay_what_they_are_between_normal_values():
    bits = [-1, 0x7FFFFFFF, 0x7F800001, -0x7FFFFF, 0x7FC00000]  # carries run out of the first, and into the next
    values = torch.full((4096,), 1.3)
    places = torch.arange(5) * 700 + 3
    values[places] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    values[places + 1] = torch.tensor([torch.inf, -torch.inf] * 2 + [torch.inf])
    infinite = values.isinf()
    for function in (torch.Tensor.half, lambda x: x.half().float() * 2):
        torch._dynamo.reset()
        found = torch.compile(function, backend="ipu", options={"stochastic_rounding": True, "seed": 3})(values)
        assert bool(found[places].isnan().all())
        assert int(found.isnan().sum()) == len(bits)
        assert bool(found.isinf().eq(infinite).all())


def test_stochastic_rounding_is_unbiased_in_every_binade():
    draws = 1_000_000
    values = spread(1000, seed=5)
    values = values[values.abs() < 60000]
    rounding = to_half(stochastic_rounding=True)
    for value in values.tolist():
        given = torch.full((1,), value)
        rounded = rounding(given.expand(draws))
        exact = given.double().item()
        spacing = 2.0 ** (max(np.floor(np.log2(abs(exact))), -14) - 10)
        fraction = abs(exact) / spacing % 1
        deviation = (rounded.double().mean().item() - exact) / spacing
        # 16 random bits leave less than 2^-16 of the spacing.
        assert abs(deviation) <= 4 * np.sqrt(fraction * (1 - fraction) / draws) + 2.0**-16


@pytest.mark.parametrize("distance", [1, 2, 3, 16, 31, 49, 196, 1000, 4096, 1 << 16, 1 << 17, (1 << 17) + 1, 3 << 18])
def test_what_goes_up_tells_nothing_of_what_lies_elsewhere(distance):
    count = 1 << 20
    half_way = torch.full((count,), 1 + 2.0**-11)
    rounding = to_half(stochastic_rounding=True)
    first, second = (rounding(half_way).double() > 1 for _ in range(2))
    signs = first.double() * 2 - 1
    for others in (signs[distance:], (second.double() * 2 - 1)[distance:]):
        assert abs((signs[:-distance] * others).mean().item()) <= 6 / np.sqrt(count - distance)
    sums = signs[: count // distance * distance].view(-1, distance).sum(0)  # of elements so far apart
    assert sums.square().mean().item() <= count // distance * (1 + 6 * np.sqrt(2 / distance))


def test_random_bits_are_as_good_as_uncorrelated_at_every_distance():
    """Correlations are in units of what those of independent numbers deviate by; a hash has a few that stand out."""
    count = 1 << 20
    bits = random_bits(count) / 65536.0
    spectrum = np.fft.rfft((bits - bits.mean()) / bits.std(), 2 * count)
    distances = np.arange(1, count // 2)
    found = np.fft.irfft(np.abs(spectrum) ** 2)[distances] / np.sqrt(count - distances)
    assert (np.abs(found) > 6).sum() <= 10
    assert np.abs(found).max() < 20
    assert abs(found.std() - 1) < 0.01


@pytest.mark.parametrize("overflow", ["infinity", "nan", "saturate"])
def test_overflow_of_stochastic_rounding(overflow):
    given = torch.tensor([65504.0, 65520.0, 1e5, -1e5, torch.inf, -torch.inf, torch.nan, -0.0])
    rounding = to_half(stochastic_rounding=True, half_overflow=overflow)
    found = torch.stack([rounding(given) for _ in range(200)]).float()
    high = {"infinity": torch.inf, "nan": torch.nan, "saturate": 65504.0}[overflow]
    assert bool((found[:, 0] == 65504).all())
    rows = found[:, 1]
    went_up = rows.isnan() if overflow == "nan" else rows == high
    assert 20 < int(went_up.sum()) < 180 or overflow == "saturate"
    for column, sign in ((2, 1), (3, -1), (4, 1), (5, -1)):
        torch.testing.assert_close(found[:, column], torch.full((200,), sign * high), equal_nan=True)
    assert bool(found[:, 6].isnan().all())
    assert bool(found[:, 7].signbit().all())
    assert bool((found[:, 7] == 0).all())


def test_results_do_not_depend_on_threads_or_layout():
    values = spread(40_000).view(200, 200)
    one = to_half(stochastic_rounding=True, host_threads=1)(values)
    four = to_half(stochastic_rounding=True, host_threads=4)(values)
    assert torch.equal(one, four)
    turned = to_half(stochastic_rounding=True)(values.t().contiguous().t())
    assert torch.equal(one, turned)


def test_each_call_draws_anew_and_a_seed_repeats_them():
    values = spread(4096)
    rounding = to_half(stochastic_rounding=True)
    first, second = rounding(values), rounding(values)
    assert not torch.equal(first, second)
    rounding = to_half(stochastic_rounding=True)
    assert torch.equal(first, rounding(values))
    assert torch.equal(second, rounding(values))


def test_every_half_result_of_a_chain_is_rounded_by_bits_of_its_own():
    def chain(x, y):
        total = x + y
        return total, total * y

    torch._dynamo.reset()
    compiled = torch.compile(chain, backend="ipu", dynamic=False, options={"stochastic_rounding": True, "seed": 11})
    x, y = spread(3000, seed=1).clamp(-99, 99).half(), spread(3000, seed=2).clamp(-99, 99).half()
    total, product = compiled(x, y)

    def rounded(exact, stream):
        bits = random_bits(3000, stream=stream)
        return round_ndarray(format_info_binary16, exact, RoundMode.StochasticFastest, srbits=bits, srnumbits=16)

    wanted = rounded((x.float() + y.float()).double().numpy(), 0)
    assert np.array_equal(total.double().numpy(), wanted)
    assert np.array_equal(product.double().numpy(), rounded((total.float() * y.float()).double().numpy(), 1))


@pytest.mark.parametrize("count", [5, 33, 1021])
def test_a_rounded_value_is_the_same_as_a_half_and_as_a_float(count):
    def both(x):
        half = x.half()
        return half, half.float()

    torch._dynamo.reset()
    options = {"stochastic_rounding": True, "seed": 11, "half_overflow": "saturate"}
    values = spread(count)
    half, whole = torch.compile(both, backend="ipu", dynamic=False, options=options)(values)
    assert torch.equal(half.float(), whole)
    alone = to_half(stochastic_rounding=True, half_overflow="saturate")(values)
    assert torch.equal(half, alone)


def test_overflow_names_are_checked():
    with pytest.raises(OptionsError, match="half_overflow"):
        Options(half_overflow="wrap")


@pytest.mark.parametrize("function", [
    lambda x: x.half().float(), lambda x: (x.half() * 1.5).float(), lambda x: (x * 1.5).half().float() + 1,
    lambda x: (x.half().float(), x.half()), lambda x: (x * 999).to(torch.int32).to(torch.int8).int(),
    lambda x: (x * 1e5).to(torch.int32).to(torch.int16).to(torch.int32), lambda x: x.half().relu().float() - x,
])
def test_a_cast_back_to_a_wider_type_keeps_what_the_narrow_one_held(function: Any) -> None:
    x = torch.linspace(-3, 3, 101)
    found = torch.compile(function, backend="ipu")(x)
    torch.testing.assert_close(found, function(x), rtol=0, atol=0)
