"""Kernels of Fourier transforms along the middle dimension of row-major ``[outer, length, inner]``.

Source: W. T. Cochran et al., What is the fast Fourier transform?, 1967, for the order of passes that needs no reversal
of digits, which they ascribe to T. G. Stockham.
"""

from typing import NamedTuple

from .kernel import Kernel, Nothing

FOR_AVX2_ALONE = True  # with AVX-512 they take as long, or longer
FOURIER_ROWS = 16
"""Rows of an item, as many as the longest vector has lanes."""
MOST_RADIX = 13
_ITEMS = "outer * blocks of FOURIER_ROWS positions of inner; of an inner size of 1 blocks of FOURIER_ROWS rows"
_SCRATCH = "length + 2 complex numbers of FOURIER_ROWS rows, twice"
_TABLE = "cosines, then sines of -2 pi k / length"


class FourierInts(NamedTuple):
    """Integers of the transforms.

    Attributes:
        outer: Rows after each other.
        inner: Rows beside each other.
        given: Values of a row of an operand; zeros follow.
        kept: Values of a row of a result, from the first.
        length: Of the transform; even, where values are real.
        is_inverse: Whether angles are positive; nothing is divided by the length.
        radices: Factors of the length, of its half where values are real; none above MOST_RADIX.
    """

    outer: int
    inner: int
    given: int
    kept: int
    length: int
    is_inverse: bool
    radices: tuple[int, ...]


FOURIER = Kernel(
    "fourier",
    {
        "real": "[outer, kept, inner]", "imaginary": "likewise", "given_real": "[outer, given, inner]",
        "given_imaginary": "likewise", "table": _TABLE,
    },
    FourierInts, Nothing, items=_ITEMS, scratch=_SCRATCH,
)
FOURIER_OF_REAL = Kernel(
    "fourier_of_real",
    {
        "real": "[outer, kept, inner], at most length // 2 + 1 frequencies: the others mirror them",
        "imaginary": "likewise", "values": "[outer, given, inner]", "table": _TABLE,
    },
    FourierInts, Nothing, items=_ITEMS, scratch=_SCRATCH,
)
FOURIER_TO_REAL = Kernel(
    "fourier_to_real",
    {
        "values": "[outer, kept, inner]",
        "given_real": "[outer, given, inner], at most length // 2 + 1 frequencies: the others mirror them",
        "given_imaginary": "likewise, not read of a frequency that is its own mirror image", "table": _TABLE,
    },
    FourierInts, Nothing, items=_ITEMS, scratch=_SCRATCH,
)
