"""Fourier transforms: short ones are products with the matrix of the transform, long ones ops of their own.

Those longer than an op takes are transforms of the factors of their length. Where that is a large prime, or a multiple
of one, they are products too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, library
from torch.utils._python_dispatch import _disable_current_modes

DIRECT = 48
"""Lengths up to which one product is a whole transform of complex values."""
DIRECT_REAL = 256
"""Likewise of real values, or to such, where no op takes them: half of the spectrum says all of it."""
LEAST_REAL = 112
"""Length from which on an op takes real rows: shorter ones are products sooner."""
LONGEST = 4096
"""Up to which an op transforms rows: what a worker of a tile needs for one is an eighth of its memory."""
PRIMES = (2, 3, 5, 7, 11, 13)
"""Factors of the lengths that an op takes."""

Pair = tuple[Tensor, Tensor | None]
"""Real and imaginary part; None for no imaginary part."""


def _single(part: Tensor) -> Tensor:
    return part.float() if part.dtype is torch.float16 else part


def _spectrum(real: Tensor, imaginary: Tensor) -> Tensor:
    return torch.complex(_single(real), _single(imaginary))


@library.custom_op(
    "ipu::fourier", mutates_args=(),
    schema="(Tensor real, Tensor imaginary, int length, bool inverse) -> (Tensor, Tensor)",
)
def fourier(real: Tensor, imaginary: Tensor, length: int, inverse: bool) -> tuple[Tensor, Tensor]:
    """Return the parts of transforms of rows, ``[outer, length, inner]``, not divided by anything.

    Args:
        real: ``[outer, n, inner]``; zeros follow.
        imaginary: Likewise.
        length: Of the transform.
        inverse: Whether angles are positive.
    """
    run = torch.fft.ifft if inverse else torch.fft.fft
    found = run(_spectrum(real, imaginary), length, 1, "forward" if inverse else "backward")
    return found.real.to(real.dtype).contiguous(), found.imag.to(real.dtype).contiguous()


@fourier.register_fake
def _(real: Tensor, imaginary: Tensor, length: int, inverse: bool) -> tuple[Tensor, Tensor]:
    shape = (real.shape[0], length, real.shape[2])
    return real.new_empty(shape), real.new_empty(shape)


@library.custom_op(
    "ipu::fourier_of_real", mutates_args=(), schema="(Tensor values, int length, int kept) -> (Tensor, Tensor)",
)
def fourier_of_real(values: Tensor, length: int, kept: int) -> tuple[Tensor, Tensor]:
    """Return the parts of the first frequencies of real rows, ``[outer, kept, inner]``.

    Args:
        values: ``[outer, n, inner]``; zeros follow.
        length: Of the transform, even.
        kept: Frequencies, of at most ``length // 2 + 1``.
    """
    found = torch.fft.rfft(_single(values), length, 1)[:, :kept]
    return found.real.to(values.dtype).contiguous(), found.imag.to(values.dtype).contiguous()


@fourier_of_real.register_fake
def _(values: Tensor, length: int, kept: int) -> tuple[Tensor, Tensor]:
    shape = (values.shape[0], kept, values.shape[2])
    return values.new_empty(shape), values.new_empty(shape)


@library.custom_op(
    "ipu::fourier_to_real", mutates_args=(), schema="(Tensor real, Tensor imaginary, int length) -> Tensor",
)
def fourier_to_real(real: Tensor, imaginary: Tensor, length: int) -> Tensor:
    """Return the real inverse transforms of rows, ``[outer, length, inner]``, not divided by anything.

    Args:
        real: ``[outer, n, inner]``, frequencies of the first half; zeros follow.
        imaginary: Likewise.
        length: Of the result, even.
    """
    return torch.fft.irfft(_spectrum(real, imaginary), length, 1, "forward").to(real.dtype).contiguous()


@fourier_to_real.register_fake
def _(real: Tensor, imaginary: Tensor, length: int) -> Tensor:
    return real.new_empty(real.shape[0], length, real.shape[2])


def transform(
    value: Pair, dims: list[int], sign: int, lengths: Mapping[int, int] | None = None, *, to_real: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return ``sum_j x[j] exp(sign 2 pi i j k / n)`` over each of some dimensions.

    Args:
        value: The parts, each ``[...]``.
        dims: Over which to sum.
        sign: -1 for a forward transform, 1 for an inverse one, which is not divided by anything here.
        lengths: Those of the transforms over dimensions in which zeros follow that the parts do not hold.
        to_real: Whether the imaginary part of the result is not read.
    """
    real, imaginary = value
    halved = _halved(real, dims, lengths or {}) if imaginary is None else None
    if halved is not None:
        real, imaginary = _of_real(real, dims, lengths or {}, halved, to_real=to_real)
        return real, -imaginary if sign > 0 else imaginary
    for dim in dims:
        length = (lengths or {}).get(dim, real.shape[dim])
        if _is_op(length) and not (to_real and dim == dims[-1] and _is_half(real.shape[dim], length)):
            imaginary = torch.zeros_like(real) if imaginary is None else imaginary
            found = torch.ops.ipu.fourier(_rows(real, dim), _rows(imaginary, dim), length, sign > 0)
            real, imaginary = (_unrolled(part, real, dim) for part in found)
            continue
        last = (real.movedim(dim, -1), None if imaginary is None else imaginary.movedim(dim, -1))
        parts = _along_last(last, sign, length, to_real=to_real and dim == dims[-1])
        real, imaginary = (part.movedim(-1, dim) for part in parts)
    return real, torch.zeros_like(real) if imaginary is None else imaginary


def _halved(value: Tensor, dims: list[int], lengths: Mapping[int, int]) -> int | None:
    """Return the dimension of which half of the spectrum of real values is worked out; None for none."""
    if not dims:
        return None
    longest = max(dims, key=lambda dim: lengths.get(dim, value.shape[dim]))
    return longest if _is_op_of_real(lengths.get(longest, value.shape[longest])) else None


def _of_real(
    value: Tensor, dims: list[int], lengths: Mapping[int, int], halved: int, *, to_real: bool,
) -> tuple[Tensor, Tensor]:
    """Transform real values forward: the other half of the spectrum is the mirror image of one, conjugated."""
    length = lengths.get(halved, value.shape[halved])
    others = [dim for dim in dims if dim != halved]
    real, imaginary = transform(half_of_real(value, halved, length), others, -1, lengths)
    real = torch.cat([real, _mirror(real, halved, others)], halved)
    if to_real:
        return real, torch.zeros_like(real)
    return real, torch.cat([imaginary, -_mirror(imaginary, halved, others)], halved)


def _mirror(half: Tensor, halved: int, others: list[int]) -> Tensor:
    """Return what lies at the negative frequencies of those between the first and the last of a half, in order."""
    between = half.narrow(halved, 1, half.shape[halved] - 2).flip([halved, *others])
    return between.roll([1] * len(others), others) if others else between


def half_of_real(value: Tensor, dim: int, length: int, kept: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the first half of the spectrum of real values, ``[..., length // 2 + 1, ...]``; the rest mirrors it.

    Args:
        value: Real values.
        dim: Over which to sum.
        length: Of the transform; zeros follow where there are fewer values.
        kept: Frequencies of the result, where not all of them.
    """
    kept = length // 2 + 1 if kept is None else kept
    if _is_op_of_real(length):
        found = torch.ops.ipu.fourier_of_real(_rows(value, dim), length, kept)
        return _unrolled(found[0], value, dim), _unrolled(found[1], value, dim)
    if length > DIRECT_REAL:
        real, imaginary = transform((value, None), [dim], -1, {dim: length})
        return real.narrow(dim, 0, kept), imaginary.narrow(dim, 0, kept)
    last = value.movedim(dim, -1)
    cosines, sines = _matrix(last.shape[-1], kept, length, last)
    return _product(last, cosines).movedim(-1, dim), _product(last, -sines).movedim(-1, dim)


def real_of_half(value: Pair, dim: int, length: int) -> Tensor:
    """Return the real inverse transform of a spectrum of which the first half is given, not divided by anything.

    Args:
        value: The parts, ``[..., length // 2 + 1, ...]``, or as many of them before zeros; imaginary parts of
            frequencies that are their own mirror images are not read.
        dim: Of the frequencies.
        length: Of the result.
    """
    real, imaginary = value[0].movedim(dim, -1), value[1]
    kept = length // 2 + 1
    given = min(kept, real.shape[-1])
    real = real.narrow(-1, 0, given)
    imaginary = torch.zeros_like(real) if imaginary is None else imaginary.movedim(dim, -1).narrow(-1, 0, given)
    if _is_op_of_real(length):
        real, imaginary = real.movedim(-1, dim), imaginary.movedim(-1, dim)
        made = torch.ops.ipu.fourier_to_real(_rows(real, dim), _rows(imaginary, dim), length)
        return _unrolled(made, real, dim)
    if length <= DIRECT_REAL:
        cosines, sines = _matrix(given, length, length, real, mirrored=True)
        return (_product(real, cosines) - _product(imaginary, sines)).movedim(-1, dim)
    real, imaginary = _padded(real, kept), _padded(imaginary, kept)
    mirror = slice(1, kept - (length + 1) % 2)
    own = torch.cat([torch.zeros_like(imaginary[..., :1]), imaginary[..., mirror]], -1)
    if length % 2 == 0:
        own = torch.cat([own, torch.zeros_like(imaginary[..., :1])], -1)
    whole = (torch.cat([real, real[..., mirror].flip(-1)], -1), torch.cat([own, -imaginary[..., mirror].flip(-1)], -1))
    return _along_last(whole, 1, length)[0].movedim(-1, dim)


def _along_last(value: Pair, sign: int, length: int, *, to_real: bool = False) -> tuple[Tensor, Tensor]:
    """Transform along the last dimension: ``[..., n]``, or as many of them before zeros.

    Where n is a product ``a b`` and long, columns of ``[a, b]`` are transformed, turned, and then the rows.

    Source: J. W. Cooley and J. W. Tukey, 1965.
    """
    given = value[0].shape[-1]
    is_half = to_real and _is_half(given, length)
    if _is_op(length) and not is_half:
        return transform(value, [value[0].dim() - 1], sign, {value[0].dim() - 1: length})
    first = 1 if is_half else _factor(length)
    if first == 1:
        return _times(value, _matrix(given, length, length, value[0]), sign)
    if given < length:
        value = _padded(value[0], length), None if value[1] is None else _padded(value[1], length)
    second = length // first
    shape = value[0].shape[:-1]
    columns = tuple(
        None if part is None else part.reshape(*shape, first, second).transpose(-1, -2) for part in value
    )
    assert columns[0] is not None
    real, imaginary = _along_last((columns[0], columns[1]), sign, first)
    cosines, sines = _matrix(second, first, length, real)
    turned = (real * cosines - sign * (imaginary * sines), imaginary * cosines + sign * (real * sines))
    rows = _along_last((turned[0].transpose(-1, -2), turned[1].transpose(-1, -2)), sign, second)
    real, imaginary = (part.transpose(-1, -2).reshape(*shape, length) for part in rows)
    return real, imaginary


def _is_op(length: int) -> bool:
    """Whether an op transforms complex rows of this length."""
    if not DIRECT < length <= LONGEST:
        return False
    for prime in PRIMES:
        while length % prime == 0:
            length //= prime
    return length == 1


def _is_op_of_real(length: int) -> bool:
    """Whether an op transforms real rows of this length, or to such."""
    return length >= LEAST_REAL and length % 2 == 0 and _is_op(length)


def _is_half(given: int, length: int) -> bool:
    """Whether so many frequencies before zeros are few enough for one product, where the real part alone is read."""
    return 2 * (given - 1) <= length <= DIRECT_REAL


def _rows(part: Tensor, dim: int) -> Tensor:
    """Return values as ``[outer, n, inner]``, where n lies along a dimension."""
    dim %= part.dim()
    return part.reshape(prod(part.shape[:dim]), part.shape[dim], prod(part.shape[dim + 1 :])).contiguous()


def _unrolled(rows: Tensor, like: Tensor, dim: int) -> Tensor:
    dim %= like.dim()
    return rows.reshape(*like.shape[:dim], rows.shape[1], *like.shape[dim + 1 :])


def _padded(part: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(part, (0, length - part.shape[-1]))


def _factor(length: int) -> int:
    """Return the largest factor below the root of a long length; 1 for a prime one, and for short ones."""
    if length <= DIRECT:
        return 1
    return next(factor for factor in range(math.isqrt(length), 0, -1) if length % factor == 0)


def _times(value: Pair, matrix: tuple[Tensor, Tensor], sign: int) -> tuple[Tensor, Tensor]:
    real, imaginary = value
    cosines, sines = matrix
    if imaginary is None:
        return _product(real, cosines), sign * _product(real, sines)
    return (
        _product(real, cosines) - sign * _product(imaginary, sines),
        _product(imaginary, cosines) + sign * _product(real, sines),
    )


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply, one row as a matrix of one: torch's own product of a vector changes a tensor in place."""
    return rows @ matrix if rows.dim() > 1 else (rows.unsqueeze(0) @ matrix).squeeze(0)


def _matrix(rows: int, columns: int, length: int, like: Tensor, *, mirrored: bool = False) -> tuple[Tensor, Tensor]:
    """Return ``cos(2 pi j k / length)`` and the sines, ``[rows, columns]``, as constants.

    Args:
        rows: Values of j.
        columns: Values of k.
        length: Of the transform.
        like: Has the element type.
        mirrored: Whether each row counts for its mirror image too.
    """
    with _disable_current_modes():
        turns = torch.arange(rows, dtype=torch.int64)[:, None] * torch.arange(columns, dtype=torch.int64) % length
        angles = turns.double() * (2 * math.pi / length)
        weights = torch.ones(rows, 1, dtype=torch.float64)
        if mirrored:
            weights[1 : (length + 1) // 2] = 2.0
        return (angles.cos() * weights).to(like.dtype), (angles.sin() * weights).to(like.dtype)
