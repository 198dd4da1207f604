"""Functions of complex numbers that are pairs of real tensors, where torch's forms of them lose digits or are missing.

``asin`` and ``asinh`` follow T. E. Hull, T. F. Fairgrieve and P. T. P. Tang, "Implementing the complex arcsine and
arccosine functions using exception handling", ACM TOMS 23 (1997), without its cases for numbers near the limits of the
type.
"""

from __future__ import annotations

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""Real and imaginary parts, of one shape and type."""


def product(left: Pair, right: Pair) -> Pair:
    """Return the products of two pairs."""
    return left[0] * right[0] - left[1] * right[1], left[0] * right[1] + left[1] * right[0]


def asin(value: Pair) -> Pair:
    """Return the arcsines: no digits are lost where the sine is real and near 1, or small."""
    real, imaginary = _of_first_quadrant(value[0].abs(), value[1].abs())
    return real.copysign(value[0]), imaginary.copysign(value[1])


def asinh(value: Pair) -> Pair:
    """Return the inverses of ``sinh``, which are arcsines a quarter turn away."""
    real, imaginary = asin((-value[1], value[0]))
    return imaginary, -real


def _of_first_quadrant(x: Tensor, y: Tensor) -> Pair:
    """Return the arcsine of numbers whose parts are not negative."""
    beyond, within = torch.hypot(x + 1, y), torch.hypot(x - 1, y)
    mean = (beyond + within) / 2  # half the axis of the ellipse through the number, whose foci are 1 and -1
    is_inner = x < 1
    # What the axes are longer than the foci, and than the real part, without differences of numbers nearly alike.
    right = torch.where(is_inner, y * y / _not_zero(within + (1 - x), is_inner), within + (x - 1))
    left = y * y / (beyond + (x + 1))
    longer = (left + right) / 2
    outer = y * y * (1 / (beyond + x + 1) + 1 / _not_zero(within + (x - 1), ~is_inner))
    narrower = torch.where(is_inner, left + within + (1 - x), outer) / 2
    return torch.atan2(x, ((mean + x) * narrower).sqrt()), torch.log1p(longer + (longer * (mean + 1)).sqrt())


def _not_zero(value: Tensor, is_used: Tensor) -> Tensor:
    """Return divisors; 1 where the quotient is not looked at, or where it is 0 / 0 at the focus and means 0."""
    return torch.where(is_used & (value != 0), value, 1.0)


def log1p(value: Pair) -> Pair:
    """Return the logarithms of 1 more, precise for small numbers."""
    real, imaginary = value
    return torch.log1p(real * (2 + real) + imaginary * imaginary) / 2, torch.atan2(imaginary, 1 + real)


def logaddexp(left: Pair, right: Pair) -> Pair:
    """Return the logarithms of sums of two exponentials; nothing overflows."""
    is_first = left[0] >= right[0]
    larger = tuple(torch.where(is_first, one, other) for one, other in zip(left, right, strict=True))
    smaller = tuple(torch.where(is_first, other, one) for one, other in zip(left, right, strict=True))
    size, angle = (smaller[0] - larger[0]).exp(), smaller[1] - larger[1]
    real, imaginary = log1p((size * angle.cos(), size * angle.sin()))
    return larger[0] + real, larger[1] + imaginary


def prod(value: Pair, dim: int) -> Pair:
    """Return the products along a dimension, which keeps size 1; pairs first, then pairs of pairs.

    No logarithms are taken: a zero is one, and so its neighbours have gradients.
    """
    if not value[0].shape[dim]:
        shape = [1 if place == dim % value[0].dim() else size for place, size in enumerate(value[0].shape)]
        return value[0].new_ones(shape), value[1].new_zeros(shape)
    while (size := value[0].shape[dim]) > 1:
        half = size // 2
        first, second, rest = (
            tuple(part.narrow(dim, begin, length) for part in value)
            for begin, length in ((0, half), (half, half), (2 * half, size % 2))
        )
        value = product(first, second)  # type: ignore[arg-type]
        if size % 2:
            value = tuple(torch.cat(parts, dim) for parts in zip(value, rest, strict=True))  # type: ignore[assignment]
    return value
