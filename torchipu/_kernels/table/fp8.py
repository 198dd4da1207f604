"""Kernels of floats of 8 bits."""

from typing import NamedTuple

from .kernel import Kernel

FP8_SPAN = 4096
"""Elements of an item."""


class Fp8EncodeInts(NamedTuple):
    """Integers of ``fp8_encode``.

    Attributes:
        elements: How many there are.
        mantissa: Bits of it.
        bias: Of the exponent.
        saturates: Whether what is too large becomes the largest, and not NaN.
        is_stochastic: Whether 16 random bits an element decide how it is rounded; see rounding_body.h.
    """

    elements: int
    mantissa: int
    bias: int
    saturates: bool
    is_stochastic: bool


class Fp8EncodeScalars(NamedTuple):
    """Real numbers of ``fp8_encode``.

    Attributes:
        inverse: One over the scale of the tensor.
        largest: The largest value there is.
    """

    inverse: float
    largest: float


FP8_ENCODE = Kernel(
    "fp8_encode", {"codes": "bytes", "values": "floats", "random?": "words of the op, where is_stochastic"},
    Fp8EncodeInts, Fp8EncodeScalars, items="spans",
)


class Fp8DecodeInts(NamedTuple):
    """Integers of ``fp8_decode``.

    Attributes:
        elements: How many there are.
        mantissa: Bits of it.
        bias: Of the exponent.
    """

    elements: int
    mantissa: int
    bias: int


class Fp8DecodeScalars(NamedTuple):
    """Real numbers of ``fp8_decode``.

    Attributes:
        scale: Of the tensor.
    """

    scale: float


FP8_DECODE = Kernel(
    "fp8_decode", {"values": "floats", "codes": "bytes"}, Fp8DecodeInts, Fp8DecodeScalars, items="spans",
)
