"""Kernels of floats of 8 bits."""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel

FP8_SPAN = 4096
"""Elements of an item."""


class Fp8Specials(IntEnum):
    """Which bytes are no finite numbers.

    Attributes:
        NEGATIVE_ZERO: NaN in the place of negative zero, nothing else: F143 and F152, ``fnuz`` in torch.
        ONES: NaN where all bits but the sign are ones, no infinity: ``fn`` in torch.
        IEEE: Infinities and NaNs have the largest exponent.
    """

    NEGATIVE_ZERO = 0
    ONES = 1
    IEEE = 2


class Fp8EncodeInts(NamedTuple):
    """Integers of ``fp8_encode``.

    Attributes:
        elements: How many there are.
        mantissa: Bits of it.
        bias: Of the exponent.
        specials: Which bytes are no finite numbers; see `Fp8Specials`.
        saturates: Whether what is too large becomes the largest, and not infinity or NaN.
        is_stochastic: Whether 16 random bits an element decide how it is rounded; see rounding_body.h.
    """

    elements: int
    mantissa: int
    bias: int
    specials: int
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
        specials: Which bytes are no finite numbers; see `Fp8Specials`.
    """

    elements: int
    mantissa: int
    bias: int
    specials: int


class Fp8DecodeScalars(NamedTuple):
    """Real numbers of ``fp8_decode``.

    Attributes:
        scale: Of the tensor.
    """

    scale: float


FP8_DECODE = Kernel(
    "fp8_decode", {"values": "floats", "codes": "bytes"}, Fp8DecodeInts, Fp8DecodeScalars, items="spans",
)
