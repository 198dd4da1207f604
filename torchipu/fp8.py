"""Floats of 8 bits as storage and as operands of products: bytes with a format and a scale for the whole tensor.

``F143`` has 4 bits of exponent and 3 of mantissa and holds magnitudes up to 240, ``F152`` 5 and 2, up to 57344. A
value is what its byte says times ``2 ** scale``. The bytes are those of torch.float8_e4m3fnuz and
torch.float8_e5m2fnuz.
"""

from __future__ import annotations

import torch
from torch import Tensor, library

FORMATS = {"F143": torch.float8_e4m3fnuz, "F152": torch.float8_e5m2fnuz}


def _checked(format: str) -> torch.dtype:
    if format not in FORMATS:
        raise ValueError(f"a float of 8 bits is 'F143' or 'F152', not {format!r}")
    return FORMATS[format]


@library.custom_op("torchipu::fp8_quantise", mutates_args=())
def quantise(value: Tensor, format: str = "F143", scale: int = 0) -> Tensor:
    """Return the bytes of values, to nearest; what is beyond the format's range becomes NaN.

    Args:
        value: Half or float.
        format: ``F143`` or ``F152``.
        scale: Power of two by which values are divided first.

    Returns:
        uint8 of the same shape.

    Raises:
        ValueError: There is no such format.
    """
    scaled = value.float() * 2.0**-scale
    dtype = _checked(format)
    beyond = ~(scaled.abs() < 1e30)
    return scaled.masked_fill(beyond, torch.nan).to(dtype).view(torch.uint8)


@quantise.register_fake
def _(value: Tensor, format: str = "F143", scale: int = 0) -> Tensor:
    _checked(format)
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
        ValueError: There is no such format.
    """
    return (code.view(_checked(format)).float() * 2.0**scale).to(dtype)


@dequantise.register_fake
def _(code: Tensor, format: str = "F143", scale: int = 0, dtype: torch.dtype = torch.float16) -> Tensor:
    _checked(format)
    return torch.empty_like(code, dtype=dtype, memory_format=torch.contiguous_format)


def _check_shapes(left: Tensor, right: Tensor) -> None:
    is_batch_alike = left.dim() == right.dim() and left.dim() in (2, 3) and left.shape[:-2] == right.shape[:-2]
    if not is_batch_alike or left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"a product of floats of 8 bits takes [M, K] by [K, N] or [B, M, K] by [B, K, N], not {list(left.shape)} "
            f"by {list(right.shape)}"
        )


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
    _check_shapes(left, right)
    product = left.view(_checked(left_format)).float() @ right.view(_checked(right_format)).float()
    return (product * 2.0**scale).half()


@matmul.register_fake
def _(left: Tensor, right: Tensor, left_format: str = "F143", right_format: str = "F143", scale: int = 0) -> Tensor:
    _checked(left_format)
    _checked(right_format)
    _check_shapes(left, right)
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=torch.float16)
