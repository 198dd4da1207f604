"""Fourier transforms as products: by the matrix of the transform, or, of long ones, of the factors of their length."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

DIRECT = 128
"""Lengths up to which one product is a whole transform of complex values."""
DIRECT_REAL = 512
"""Likewise of real values, or to such: half of the spectrum says all of it."""

Pair = tuple[Tensor, Tensor | None]
"""Real and imaginary part; None for no imaginary part."""


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
    for dim in dims:
        last = (real.movedim(dim, -1), None if imaginary is None else imaginary.movedim(dim, -1))
        length = (lengths or {}).get(dim, real.shape[dim])
        parts = _along_last(last, sign, length, to_real=to_real and dim == dims[-1])
        real, imaginary = (part.movedim(-1, dim) for part in parts)
    return real, torch.zeros_like(real) if imaginary is None else imaginary


def half_of_real(value: Tensor, dim: int, length: int, kept: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the first half of the spectrum of real values, ``[..., length // 2 + 1, ...]``; the rest mirrors it.

    Args:
        value: Real values.
        dim: Over which to sum.
        length: Of the transform; zeros follow where there are fewer values.
        kept: Frequencies of the result, where not all of them.
    """
    kept = length // 2 + 1 if kept is None else kept
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
    is_half = to_real and 2 * (given - 1) <= length <= DIRECT_REAL
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
