"""Floats of 8 bits, judged by gfloat's formats and by torch's own casts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gfloat import RoundMode, round_ndarray
from gfloat.formats import format_info_binary16

import torchipu
from torchipu import fp8
from torchipu.errors import ConstraintError

LARGEST = {"F143": 240.0, "F152": 57344.0}
TORCH = {"F143": torch.float8_e4m3fnuz, "F152": torch.float8_e5m2fnuz}


def compiled(function, *inputs, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", dynamic=False, options={"target": "c600", **options})(*inputs)


@pytest.mark.parametrize("name", fp8.FORMATS)
def test_every_byte_has_the_value_of_torchs_type(name):
    codes = torch.arange(256, dtype=torch.uint8)
    for scale in (0, 3, -5):
        found = compiled(lambda c, s=scale: fp8.dequantise(c, name, s, torch.float32), codes)
        torch.testing.assert_close(found, codes.view(TORCH[name]).float() * 2.0**scale, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", fp8.FORMATS)
def test_bytes_come_back_and_every_tie_goes_to_even(name):
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(TORCH[name]).float()
    assert torch.equal(compiled(lambda v: fp8.quantise(v, name), values), codes)
    finite = values[values.isfinite()].sort().values
    between = torch.cat([(finite[1:] + finite[:-1]) / 2, torch.nextafter(finite, torch.tensor(torch.inf)), -finite])
    wanted = between.to(TORCH[name]).view(torch.uint8)
    assert torch.equal(compiled(lambda v: fp8.quantise(v, name), between), wanted)


@pytest.mark.parametrize("name", fp8.FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_random_values_are_rounded_to_nearest_under_a_scale(name, dtype):
    values = (torch.randn(5000) * torch.exp2(torch.randint(-14, 9, (5000,)).float())).to(dtype)
    for scale in (0, -4, 6):
        wanted = (values.float() * 2.0**-scale).to(TORCH[name]).view(torch.uint8)
        assert torch.equal(compiled(lambda v, s=scale: fp8.quantise(v, name, s), values), wanted)


@pytest.mark.parametrize("name", fp8.FORMATS)
def test_what_is_beyond_the_range_is_nan_and_there_is_no_negative_zero(name):
    values = torch.tensor([LARGEST[name], LARGEST[name] * 1.5, torch.inf, -torch.inf, torch.nan, -0.0, -1e-30])
    found = compiled(lambda v: fp8.quantise(v, name), values)
    assert found[1:].tolist() == [0x80] * 4 + [0, 0]
    assert found[0] == 0x7F


@pytest.mark.parametrize(("left", "right"), [("F143", "F143"), ("F143", "F152"), ("F152", "F152")])
def test_products_sum_32_channels_as_floats_and_write_halves_back(left, right):
    a = fp8.quantise(torch.randn(9, 100), left)
    b = fp8.quantise(torch.randn(100, 21) * 4, right)
    found = compiled(lambda x, y: fp8.matmul(x, y, left, right, 2), a, b)
    x, y = a.view(TORCH[left]).float().numpy(), b.view(TORCH[right]).float().numpy()
    total = np.zeros((9, 21), np.float32)
    for begin in range(0, 100, 32):
        for k in range(begin, min(100, begin + 32)):
            total = total + x[:, k : k + 1] * y[k : k + 1]
        total = round_ndarray(format_info_binary16, total.astype(np.float64), RoundMode.TiesToEven).astype(np.float32)
    assert np.array_equal(found.float().numpy(), (total * 4).astype(np.float16).astype(np.float32))


def test_a_batch_of_products_gives_what_each_of_them_gives():
    a, b = fp8.quantise(torch.randn(3, 5, 70)), fp8.quantise(torch.randn(3, 70, 11))
    product = lambda x, y: fp8.matmul(x, y, scale=-1)  # noqa: E731
    together = compiled(product, a, b)
    apart = torch.stack([compiled(product, x, y) for x, y in zip(a, b, strict=True)])
    assert torch.equal(together, apart)
    exact = fp8.dequantise(a, dtype=torch.float32).double() @ fp8.dequantise(b, dtype=torch.float32).double() / 2
    # Three sums below 64 are rounded to halves, each by 2^-6 at most, and the result once.
    torch.testing.assert_close(together.double(), exact, rtol=1e-3, atol=3 * 2.0**-6)


@pytest.mark.parametrize(("left", "right"), [((2, 3), (4, 2)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (3, 4, 5))])
def test_shapes_that_do_not_fit_are_refused(left, right):
    codes = [torch.zeros(shape, dtype=torch.uint8) for shape in (left, right)]
    with pytest.raises(ValueError, match=r"takes \[M, K\] by \[K, N\] or \[B, M, K\] by \[B, K, N\], not"):
        fp8.matmul(*codes)


def test_casts_round_to_nearest_beside_halves_that_are_rounded_stochastically():
    # The bit of the machine is that of halves: floats of 8 bits are rounded to nearest in any case.
    values = torch.randn(500)
    found = compiled(lambda v: fp8.quantise(v), values, stochastic_rounding=True)
    assert torch.equal(found, values.to(torch.float8_e4m3fnuz).view(torch.uint8))


def test_a_machine_without_them_stores_them_but_refuses_products():
    values = torch.randn(16)
    stored = compiled(lambda v: fp8.dequantise(fp8.quantise(v), dtype=torch.float32), values, target="mk2")
    assert torch.equal(stored, values.to(torch.float8_e4m3fnuz).float())
    codes = fp8.quantise(torch.randn(4, 4))
    with pytest.raises(Exception, match=r"(?s)Mk2 GC200 takes no floats of 8 bits.*set target='c600'") as caught:
        compiled(lambda a, b: fp8.matmul(a, b), codes, codes, target="mk2")
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), ConstraintError)


def test_products_are_faster_than_those_of_halves_on_the_device():
    class Bytes(torch.nn.Module):
        def forward(self, a, b):
            return fp8.matmul(a, b)

    class Halves(torch.nn.Module):
        def forward(self, a, b):
            return a @ b

    options = torchipu.Options(target="c600", partials_type="half")
    quick, slow = torchipu.InferenceStep(Bytes(), options), torchipu.InferenceStep(Halves(), options)
    codes = fp8.quantise(torch.randn(2048, 2048))
    quick.compile(codes, codes)
    slow.compile(codes.half(), codes.half())
    assert quick.profile.cycles_per_update < slow.profile.cycles_per_update


def test_other_formats_are_refused():
    with pytest.raises(ValueError, match="a float of 8 bits is 'F143' or 'F152', not 'F134'"):
        fp8.quantise(torch.ones(2), "F134")
