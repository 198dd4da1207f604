"""Fourier transforms of rows against eager mode in float64."""

import pytest
import torch

from tests.kernels.record_runner import run_record, serves
from torchipu.ops.fourier import radices_of

LENGTHS = [4, 6, 30, 143, 182, 256, 350, 512, 1024]
SHAPES = [(1, 1), (17, 1), (40, 1), (2, 3), (2, 37)]


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def assert_near(found, wanted, whole=None):
    """Compare with the error that a transform of floats has: of the largest value of each whole row."""
    scale = (wanted if whole is None else whole).abs().amax(1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(found.double() / scale, wanted / scale, rtol=0, atol=1e-6)


def on_threads(target, operands, attrs, results):
    """Return what one thread computes, after four have computed the same bits."""
    first, second = (run_record(target, operands, attrs, results, threads) for threads in (1, 4))
    assert all(map(torch.equal, first, second))
    return first


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("outer", "inner"), SHAPES)
@pytest.mark.parametrize("inverse", [False, True])
def test_complex_rows_with_zeros_behind_them(length, outer, inner, inverse):
    for given in (length, length // 2 + 1):
        real, imaginary = normal(outer, given, inner), normal(1, outer, given, inner)[0]
        run = torch.fft.ifft if inverse else torch.fft.fft
        value = torch.complex(real.double(), imaginary.double())
        wanted = run(value, length, 1, norm="forward" if inverse else "backward")
        found = on_threads("ipu.fourier.default", {"real": real, "imaginary": imaginary},
                           {"length": length, "inverse": inverse}, [((outer, length, inner), torch.float32)] * 2)
        assert_near(torch.cat(found, 1), torch.cat([wanted.real, wanted.imag], 1))


@pytest.mark.parametrize("length", [length for length in LENGTHS if length % 2 == 0])
@pytest.mark.parametrize(("outer", "inner"), SHAPES)
def test_real_rows(length, outer, inner):
    for given, kept in ((length, length // 2 + 1), (length // 2 - 1, 2)):
        values = normal(outer, given, inner)
        whole = torch.fft.rfft(values.double(), length, 1)
        wanted = whole[:, :kept]
        found = on_threads("ipu.fourier_of_real.default", {"values": values}, {"length": length, "kept": kept},
                           [((outer, kept, inner), torch.float32)] * 2)
        assert_near(torch.cat(found, 1), torch.cat([wanted.real, wanted.imag], 1), whole)


@pytest.mark.parametrize("length", [length for length in LENGTHS if length % 2 == 0])
@pytest.mark.parametrize(("outer", "inner"), SHAPES)
def test_rows_that_become_real(length, outer, inner):
    for given in (length // 2 + 1, 2):
        real, imaginary = normal(outer, given, inner), normal(1, outer, given, inner)[0]
        wanted = torch.fft.irfft(torch.complex(real.double(), imaginary.double()), length, 1, norm="forward")
        found = on_threads("ipu.fourier_to_real.default", {"real": real, "imaginary": imaginary}, {"length": length},
                           [((outer, length, inner), torch.float32)])
        assert_near(found[0], wanted)


def test_rows_do_not_depend_on_each_other():
    values = normal(20, 512, 1)
    alone = run_record("ipu.fourier_of_real.default", {"values": values[3:4]}, {"length": 512, "kept": 257},
                       [((1, 257, 1), torch.float32)] * 2)
    values[2], values[4] = torch.inf, 1e30
    among = run_record("ipu.fourier_of_real.default", {"values": values}, {"length": 512, "kept": 257},
                       [((20, 257, 1), torch.float32)] * 2)
    assert all(torch.equal(part[0], parts[3]) for part, parts in zip(alone, among, strict=True))


def test_large_primes_and_odd_real_rows_are_left_to_aten():
    rows = {"real": normal(2, 5, 1), "imaginary": normal(2, 5, 1)}
    assert serves("ipu.fourier.default", rows, {"length": 13 * 11, "inverse": False})
    assert not serves("ipu.fourier.default", rows, {"length": 17 * 8, "inverse": False})
    assert not serves("ipu.fourier_of_real.default", {"values": rows["real"]}, {"length": 15, "kept": 3})


def test_passes_take_all_factors():
    for length in range(1, 300):
        assert torch.tensor(radices_of(length)).prod() == length
