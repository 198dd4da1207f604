"""Ops on bytes that are floats of 8 bits: conversions, products and convolutions, with what eager computes for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, library

FORMATS = {"F143": torch.float8_e4m3fnuz, "F152": torch.float8_e5m2fnuz}
MANTISSA_AND_BIAS = {"F143": (3, 8), "F152": (2, 16)}
SCALES = range(-32, 32)
"""Powers of two that the matrix unit takes; source: PopART's check of log2 scales, recalled."""
OVERFLOWS = ("nan", "saturate")
_BEYOND_ALL = 1e30


# --------------------------------------------------------------------------- conversions
def quantise(
    value: Tensor, format: str = "F143", scale: int = 0, *, overflow: str = "nan", stochastic: bool = False,
) -> Tensor:
    """Return the bytes of values.

    Args:
        value: Half or float.
        format: ``F143`` or ``F152``.
        scale: Power of two by which values are divided first, from -32 to 31.
        overflow: What becomes of values beyond the format's range, infinity among them: ``nan``, or ``saturate`` for
            the largest. NaN stays NaN.
        stochastic: Round up or down at random, in proportion to what is discarded; else to nearest, ties to even.

    Returns:
        uint8 of the same shape.

    Raises:
        ValueError: There is no such format, scale or treatment of overflows.
    """
    if overflow not in OVERFLOWS:
        raise ValueError(f"an overflow of a float of 8 bits becomes 'nan' or is made to 'saturate', not {overflow!r}")
    convert = quantise_stochastically if stochastic else quantise_to_nearest
    result: Tensor = convert(value, format, scale, overflow == "saturate")
    return result


@library.custom_op("torchipu::fp8_quantise", mutates_args=())
def quantise_to_nearest(value: Tensor, format: str, scale: int, saturates: bool) -> Tensor:
    """Return bytes, rounded to nearest; see `quantise`."""
    check(format, scale)
    return _encoded(value.double() * 2.0**-scale, format, saturates)


@library.custom_op(
    "torchipu::fp8_quantise_stochastically", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,),
)
def quantise_stochastically(value: Tensor, format: str, scale: int, saturates: bool) -> Tensor:
    """Return bytes, rounded stochastically; see `quantise`."""
    check(format, scale)
    return quantise_by(value, format, scale, saturates, torch.rand(value.shape, dtype=torch.float64))


def quantise_by(value: Tensor, format: str, scale: int, saturates: bool, random: Tensor) -> Tensor:
    """Return bytes, rounded up where a number in [0, 1) is at least what would be added; see `quantise`.

    Args:
        value: Half or float.
        format: As for `quantise`.
        scale: As for `quantise`.
        saturates: Whether overflows become the largest.
        random: Numbers in [0, 1), of the shape of ``value``.
    """
    scaled = value.double() * 2.0**-scale
    mantissa, bias = MANTISSA_AND_BIAS[format]
    exponent = (torch.frexp(scaled)[1] - 1).clamp(min=1 - bias) - mantissa
    units = torch.ldexp(scaled.abs(), -exponent)
    rounded = torch.ldexp(torch.floor(units + random), exponent).copysign(scaled)
    return _encoded(torch.where(scaled.isfinite(), rounded, scaled), format, saturates)


def _encoded(scaled: Tensor, format: str, saturates: bool) -> Tensor:
    dtype = FORMATS[format]
    largest = torch.finfo(dtype).max
    found = scaled.masked_fill(~(scaled.abs() < _BEYOND_ALL), torch.nan).float().to(dtype)
    if saturates:
        edge = torch.full_like(scaled, largest).copysign(scaled).float().to(dtype)
        is_beyond = found.float().isnan() & ~scaled.isnan()
        return torch.where(is_beyond, edge.view(torch.uint8), found.view(torch.uint8))
    return found.view(torch.uint8)


@quantise_to_nearest.register_fake
@quantise_stochastically.register_fake
def _(value: Tensor, format: str, scale: int, saturates: bool) -> Tensor:
    check(format, scale)
    return torch.empty_like(value, dtype=torch.uint8, memory_format=torch.contiguous_format)


@library.custom_op("torchipu::fp8_dequantise", mutates_args=())
def dequantise(code: Tensor, format: str = "F143", scale: int = 0, dtype: torch.dtype = torch.float16) -> Tensor:
    """Return the values of bytes.

    Args:
        code: uint8, from `quantise`.
        format: That of the bytes.
        scale: That of the bytes.
        dtype: Half or float.

    Raises:
        ValueError: There is no such format or scale.
    """
    check(format, scale)
    return (_values(code, format) * 2.0**scale).to(dtype)


@dequantise.register_fake
def _(code: Tensor, format: str = "F143", scale: int = 0, dtype: torch.dtype = torch.float16) -> Tensor:
    check(format, scale)
    return torch.empty_like(code, dtype=dtype, memory_format=torch.contiguous_format)


def check(format: str, *scales: int) -> None:
    """Refuse what is no format, and scales that the machine does not take.

    Raises:
        ValueError: With what there is.
    """
    if format not in FORMATS:
        raise ValueError(f"a float of 8 bits is 'F143' or 'F152', not {format!r}")
    for scale in scales:
        if scale not in SCALES:
            raise ValueError(
                f"a scale of floats of 8 bits is a power of two from {SCALES[0]} to {SCALES[-1]}, not {scale!r}: it is "
                "the exponent, not the factor"
            )


def _values(code: Tensor, format: str) -> Tensor:
    return code.view(FORMATS[format]).float()


# --------------------------------------------------------------------------- products
@library.custom_op("torchipu::fp8_matmul", mutates_args=())
def matmul(
    left: Tensor, right: Tensor, left_format: str = "F143", right_format: str = "F143", scale: int = 0
) -> Tensor:
    """Multiply two matrices of bytes, or each of a batch; sums are halves: a C600 has no others for them.

    Args:
        left: uint8, [M, K] or [B, M, K].
        right: uint8, [K, N] or [B, K, N].
        left_format: Format of ``left``.
        right_format: Format of ``right``.
        scale: Sum of the scales of both.

    Returns:
        half, [M, N] or [B, M, N].

    Raises:
        ValueError: There is no such format, or the shapes do not fit.
    """
    _check_product(left, right, left_format, right_format)
    return ((_values(left, left_format) @ _values(right, right_format)) * 2.0**scale).half()


@matmul.register_fake
def _(left: Tensor, right: Tensor, left_format: str = "F143", right_format: str = "F143", scale: int = 0) -> Tensor:
    _check_product(left, right, left_format, right_format)
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=torch.float16)


def _check_product(left: Tensor, right: Tensor, left_format: str, right_format: str) -> None:
    check(left_format)
    check(right_format)
    is_batch_alike = left.dim() == right.dim() and left.dim() in (2, 3) and left.shape[:-2] == right.shape[:-2]
    if not is_batch_alike or left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"a product of floats of 8 bits takes [M, K] by [K, N] or [B, M, K] by [B, K, N], not {list(left.shape)} "
            f"by {list(right.shape)}"
        )


# --------------------------------------------------------------------------- convolutions
def convolution(
    input: Tensor, weight: Tensor, input_format: str = "F143", weight_format: str = "F143", scale: int = 0,
    stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve bytes of one to three dimensions; sums are halves.

    Args:
        input: uint8, [N, C, *size].
        weight: uint8, [F, C / groups, *window].
        input_format: Format of ``input``.
        weight_format: Format of ``weight``.
        scale: Sum of the scales of both.
        stride: As of torch.nn.functional.conv2d, one number or one for each dimension; so are the following.
        padding: Zeros around the input.
        dilation: Distance of the window's elements.
        groups: Groups of channels.

    Returns:
        half, [N, F, *size of the output].

    Raises:
        ValueError: There is no such format.
    """
    window = [each(value, weight.dim() - 2) for value in (stride, padding, dilation)]
    result: Tensor = convolve(input, weight, input_format, weight_format, scale, *window, groups)
    return result


def each(value: int | Sequence[int], dimensions: int) -> list[int]:
    """Return one number for each dimension."""
    return [value] * dimensions if isinstance(value, int) else list(value)


@library.custom_op("torchipu::fp8_convolution", mutates_args=())
def convolve(
    input: Tensor, weight: Tensor, input_format: str, weight_format: str, scale: int, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> Tensor:
    """Convolve bytes; see `convolution`."""
    check(input_format)
    check(weight_format)
    values = _values(input, input_format), _values(weight, weight_format)
    return (_convolved(*values, stride, padding, dilation, groups) * 2.0**scale).half()


@convolve.register_fake
def _(
    input: Tensor, weight: Tensor, input_format: str, weight_format: str, scale: int, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> Tensor:
    check(input_format)
    check(weight_format)
    return _convolved(input.half(), weight.half(), stride, padding, dilation, groups)


def _convolved(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> Tensor:
    dimensions = weight.dim() - 2
    return torch.ops.aten.convolution.default(
        x, weight, None, list(stride), list(padding), list(dilation), False, [0] * dimensions, groups
    )


@library.custom_op("torchipu::fp8_convolution_backward", mutates_args=())
def convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, formats: str, scales: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a convolution's input and weights, halves.

    Args:
        grad_output: uint8, as the others.
        input: That of the convolution.
        weight: That of the convolution.
        formats: Of the three, with commas between.
        scales: Of the three.
        stride: Of the convolution, as the following.
        padding: Zeros around the input.
        dilation: Distance of the window's elements.
        groups: Groups of channels.
    """
    values = [_values(c, f) for c, f in zip((grad_output, input, weight), formats.split(","), strict=True)]
    dimensions = weight.dim() - 2
    dx, dw, _ = torch.ops.aten.convolution_backward.default(
        *values, None, list(stride), list(padding), list(dilation), False, [0] * dimensions, groups, [True, True, False]
    )
    return (dx * 2.0 ** (scales[0] + scales[2])).half(), (dw * 2.0 ** (scales[0] + scales[1])).half()


@convolution_backward.register_fake
def _(
    grad_output: Tensor, input: Tensor, weight: Tensor, formats: str, scales: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> tuple[Tensor, Tensor]:
    for format in formats.split(","):
        check(format)
    return (
        torch.empty_like(input, dtype=torch.float16, memory_format=torch.contiguous_format),
        torch.empty_like(weight, dtype=torch.float16, memory_format=torch.contiguous_format),
    )
