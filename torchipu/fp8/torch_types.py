"""Floats of 8 bits that torch has types for: casts between them and wider floats, as operators on their bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

TYPES = {
    "e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
"""The last two are F143 and F152, which the machine has; it holds the others as bytes that its casts know."""
NAMES = {dtype: name for name, dtype in TYPES.items()}


@library.custom_op("torchipu::float8_encode", mutates_args=())
def encode(value: Tensor, format: str) -> Tensor:
    """Return the bytes of what torch casts values to.

    Args:
        value: Half or float.
        format: Name of the type, without ``float8_``.

    Returns:
        uint8 of the same shape.
    """
    return value.to(TYPES[format]).view(torch.uint8)


@encode.register_fake
def _(value: Tensor, format: str) -> Tensor:
    return torch.empty_like(value, dtype=torch.uint8)


@library.custom_op("torchipu::float8_decode", mutates_args=())
def decode(code: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    """Return the values of bytes.

    Args:
        code: uint8.
        format: Name of their type, without ``float8_``.
        dtype: Half or float.
    """
    return code.view(TYPES[format]).to(dtype)


@decode.register_fake
def _(code: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(code, dtype=dtype)


def as_bytes(value: Any) -> Any:
    """Return the bytes of a tensor of one of these types; anything else as it is."""
    return value.view(torch.uint8) if isinstance(value, Tensor) and value.dtype in NAMES else value
