"""Products and convolutions of values that are converted to floats of 8 bits on the way, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchipu.fp8.codes import check, convolution_backward, convolve, each, matmul, quantise


def product(
    left: Tensor, right: Tensor, *, left_scale: int = 0, right_scale: int = 0, gradient_scale: int = 0,
    left_format: str = "F143", right_format: str = "F143", gradient_format: str = "F152", overflow: str = "nan",
) -> Tensor:
    """Multiply two matrices by way of floats of 8 bits.

    The backward converts the gradient of the result too: the gradients are products of bytes, and what is kept for
    them are bytes.

    Args:
        left: Half or float, [M, K], [B, M, K], or [..., K] by a ``right`` of two dimensions.
        right: Half or float, [K, N] or [B, K, N].
        left_scale: Power of two by which ``left`` is divided before its conversion.
        right_scale: The same for ``right``.
        gradient_scale: The same for the gradient of the result.
        left_format: ``F143`` or ``F152``.
        right_format: The same.
        gradient_format: The same; F152 has the range that gradients need.
        overflow: What becomes of values beyond a format's range; see `quantise`.

    Returns:
        half, [..., N].

    Raises:
        ValueError: There is no such format or scale, or the shapes do not fit.
    """
    formats, scales = (left_format, right_format, gradient_format), (left_scale, right_scale, gradient_scale)
    _check(formats, scales)
    shape = left.shape
    if right.dim() == 2 and left.dim() != 2:
        left = left.reshape(-1, shape[-1])
        found: Tensor = _Product.apply(left, right, formats, scales, overflow)
        return found.reshape(*shape[:-1], right.shape[-1])
    result: Tensor = _Product.apply(left, right, formats, scales, overflow)
    return result


def conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, *, input_scale: int = 0,
    weight_scale: int = 0, gradient_scale: int = 0, input_format: str = "F143", weight_format: str = "F143",
    gradient_format: str = "F152", overflow: str = "nan",
) -> Tensor:
    """Convolve by way of floats of 8 bits, in one to three dimensions; both gradients are convolutions of bytes too.

    Args:
        input: Half or float, [N, C, *size].
        weight: Half or float, [F, C / groups, *window].
        bias: [F], added to the half result.
        stride: As of torch.nn.functional.conv2d, as the following.
        padding: Zeros around the input.
        dilation: Distance of the window's elements.
        groups: Groups of channels.
        input_scale: Power of two by which ``input`` is divided before its conversion.
        weight_scale: The same for ``weight``.
        gradient_scale: The same for the gradient of the result.
        input_format: ``F143`` or ``F152``.
        weight_format: The same.
        gradient_format: The same; F152 has the range that gradients need.
        overflow: What becomes of values beyond a format's range; see `quantise`.

    Returns:
        half, [N, F, *size of the output].

    Raises:
        ValueError: There is no such format or scale.
    """
    formats, scales = (input_format, weight_format, gradient_format), (input_scale, weight_scale, gradient_scale)
    _check(formats, scales)
    dimensions = weight.dim() - 2
    window = [each(value, dimensions) for value in (stride, padding, dilation)]
    result: Tensor = _Convolution.apply(
        input, weight, formats, scales, overflow, window, groups
    )
    return result if bias is None else result + bias.to(result.dtype).reshape(-1, *[1] * dimensions)


def _check(formats: Sequence[str], scales: Sequence[int]) -> None:
    for format, scale in zip(formats, scales, strict=True):
        check(format, scale)


class _Product(torch.autograd.Function):
    """A product of bytes, whose operands are kept as bytes."""

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, formats: tuple[str, ...], scales: tuple[int, ...], overflow: str,
    ) -> Tensor:
        codes = [
            quantise(value, format, scale, overflow=overflow)
            for value, format, scale in zip((left, right), formats[:2], scales[:2], strict=True)
        ]
        ctx.save_for_backward(*codes)
        ctx.formats, ctx.scales, ctx.overflow = formats, scales, overflow
        ctx.dtypes = left.dtype, right.dtype
        return matmul(*codes, *formats[:2], scales[0] + scales[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors
        left_format, right_format, format = ctx.formats
        left_scale, right_scale, scale = ctx.scales
        code = quantise(grads[0], format, scale, overflow=ctx.overflow)
        to_left = matmul(code, right.transpose(-1, -2), format, right_format, scale + right_scale)
        to_right = matmul(left.transpose(-1, -2), code, left_format, format, left_scale + scale)
        return to_left.to(ctx.dtypes[0]), to_right.to(ctx.dtypes[1]), None, None, None


class _Convolution(torch.autograd.Function):
    """A convolution of bytes, whose operands are kept as bytes."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, formats: tuple[str, ...], scales: tuple[int, ...], overflow: str,
        window: list[list[int]], groups: int,
    ) -> Tensor:
        codes = [
            quantise(value, format, scale, overflow=overflow)
            for value, format, scale in zip((input, weight), formats[:2], scales[:2], strict=True)
        ]
        ctx.save_for_backward(*codes)
        ctx.formats, ctx.scales, ctx.overflow = formats, scales, overflow
        ctx.window, ctx.groups, ctx.dtypes = window, groups, (input.dtype, weight.dtype)
        return convolve(*codes, *formats[:2], scales[0] + scales[1], *window, groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        input_format, weight_format, format = ctx.formats
        input_scale, weight_scale, scale = ctx.scales
        code = quantise(grads[0], format, scale, overflow=ctx.overflow)
        dx, dw = convolution_backward(
            code, input, weight, ",".join((format, input_format, weight_format)), [scale, input_scale, weight_scale],
            *ctx.window, ctx.groups,
        )
        return dx.to(ctx.dtypes[0]), dw.to(ctx.dtypes[1]), None, None, None, None, None
