"""The two floats of 8 bits as gfloat describes formats, and what a product of them is."""

from __future__ import annotations

from typing import Any

import numpy as np
from gfloat import Domain, FormatInfo, RoundMode, round_ndarray
from gfloat.formats import format_info_binary16

CHANNELS = 32


def format_of(name: str) -> FormatInfo:
    """Return F143 or F152: no infinity, one NaN in the place of negative zero."""
    precision, bias = {"F143": (4, 8), "F152": (3, 16)}[name]
    return FormatInfo(
        name=name, k=8, precision=precision, bias=bias, domain=Domain.Finite, is_signed=True, num_high_nans=0,
        has_nz=False, has_subnormals=True, is_twos_complement=False,
    )


def rounded(values: Any, name: str, scale: int = 0, *, saturates: bool = False, bits: Any = None) -> Any:
    """Return what the conversion makes of values, by gfloat; ``bits`` are 16 for each, to round stochastically."""
    exact = np.asarray(values, np.float64) * 2.0**-scale
    mode = RoundMode.TiesToEven if bits is None else RoundMode.StochasticFastest
    given = {} if bits is None else {"srbits": bits, "srnumbits": 16}
    found = round_ndarray(format_of(name), exact, mode, sat=saturates, **given)
    return found * 2.0**scale


def product(left: Any, right: Any, scale: int = 0, *, taps: int = 1) -> Any:
    """Return [M, K] by [K, N]: sums of 32 channels are floats, and what is kept of them halves."""
    channels = left.shape[1] // taps
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for tap in range(taps):
        for begin in range(tap * channels, (tap + 1) * channels, CHANNELS):
            for k in range(begin, min((tap + 1) * channels, begin + CHANNELS)):
                total = total + np.float32(left[:, k : k + 1]) * np.float32(right[k : k + 1])
            half = round_ndarray(format_info_binary16, total.astype(np.float64), RoundMode.TiesToEven)
            total = half.astype(np.float32)
    return round_ndarray(format_info_binary16, total.astype(np.float64) * 2.0**scale, RoundMode.TiesToEven)
