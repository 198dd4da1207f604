"""Weights of interpolation along one dimension, and places of the elements of paddings that repeat."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

Row = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Taps:
    """A linear map along one dimension.

    Attributes:
        length: Elements of the operand along it.
        rows: For each element of the result the sources and weights that it sums.
    """

    length: int
    rows: tuple[Row, ...]

    @property
    def is_identity(self) -> bool:
        """Whether the result is the operand."""
        return len(self.rows) == self.length and all(row == ((i, 1.0),) for i, row in enumerate(self.rows))

    @property
    def is_identity_of_finite(self) -> bool:
        """Whether the result is the operand, but for NaN where that is not finite."""
        return len(self.rows) == self.length and all(row == ((i, 1.0), (i, 0.0)) for i, row in enumerate(self.rows))

    @property
    def width(self) -> int:
        """Most sources of one element."""
        return max((len(row) for row in self.rows), default=0)


def unchanged(size: int) -> Taps:
    """Return the map that changes nothing."""
    return Taps(size, tuple(((place, 1.0),) for place in range(size)))


def transposed(taps: Taps) -> Taps:
    """Return the map that takes gradients of the result to gradients of the operand."""
    back: list[list[tuple[int, float]]] = [[] for _ in range(taps.length)]
    for place, row in enumerate(taps.rows):
        for source, weight in row:
            back[source].append((place, weight))
    return Taps(len(taps.rows), tuple(map(tuple, back)))


def needed_maps(taps: Mapping[int, Taps]) -> dict[int, Taps]:
    """Leave out maps that change nothing, and all but one of those that make NaN of what is not finite and no more."""
    changing = {dim: one for dim, one in taps.items() if not one.is_identity}
    alike = [dim for dim, one in changing.items() if one.is_identity_of_finite]
    return {dim: one for dim, one in changing.items() if dim not in alike[:-1]}


def _single(value: float) -> float:
    """Round to float, as eager mode keeps scales."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _scale(size: int, result: int, align: bool, factor: float | None) -> float:
    """Return how far apart neighbours of the result lie in the operand."""
    if align:
        return (size - 1) / (result - 1) if result > 1 else 0.0
    return 1.0 / factor if factor is not None and factor > 0 else size / result


def nearest_taps(size: int, result: int, factor: float | None, *, exact: bool) -> Taps:
    """Take the element before, or the nearest one; positions are rounded to float, as they are in eager mode."""
    scale, shift = _single(_scale(size, result, False, factor)), 0.5 if exact else 0.0
    places = [i if size == result else min(floor(_single((i + shift) * scale)), size - 1) for i in range(result)]
    return Taps(size, tuple(((place, 1.0),) for place in places))


def linear_taps(size: int, result: int, align: bool, factor: float | None) -> Taps:
    """Weigh the two neighbours by their distance; there is none beyond the border, nor where no size changes."""
    if size == result:
        return Taps(size, tuple(((i, 1.0), (i, 0.0)) for i in range(size)))
    scale, rows = _scale(size, result, align, factor), []
    for i in range(result):
        at = scale * i if align else max(0.0, scale * (i + 0.5) - 0.5)
        low = min(int(at), size - 1)
        part = min(1.0, at - low)
        rows.append(((low, 1.0 - part), (min(low + 1, size - 1), part)))
    return Taps(size, tuple(rows))


def _cubic(distance: float, a: float) -> float:
    """Keys' kernel."""
    x = abs(distance)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _cubic_beyond(x: float, a: float) -> float:
    """Keys' kernel between one and two, rounded as in eager mode: zero, or nearly, where that has it."""
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def cubic_taps(size: int, result: int, align: bool, factor: float | None) -> Taps:
    """Weigh four neighbours; beyond the border the last element is repeated."""
    scale, rows = _scale(size, result, align, factor), []
    for i in range(result):
        at = scale * i if align else scale * (i + 0.5) - 0.5
        low = floor(at)
        part, rest, a = at - low, 1.0 - (at - low), -0.75
        weights = _cubic_beyond(part + 1.0, a), _cubic(part, a), _cubic(rest, a), _cubic_beyond(rest + 1.0, a)
        sources = (min(max(place, 0), size - 1) for place in range(low - 1, low + 3))
        rows.append(tuple(zip(sources, weights, strict=True)))
    return Taps(size, tuple(rows))


def smoothed_taps(size: int, result: int, align: bool, factor: float | None, *, cubic: bool) -> Taps:
    """Weigh all neighbours within the support of a filter that is as wide as an element of the result."""
    scale, rows = _scale(size, result, align, factor), []
    wide = max(scale, 1.0)
    support, nearness = (2.0 if cubic else 1.0) * wide, 1.0 / wide  # rounded as in eager mode, where weights are zero
    for i in range(result):
        centre = scale * (i + 0.5)
        first = max(int(centre - support + 0.5), 0)
        last = min(int(centre + support + 0.5), size)
        distances = [(place - centre + 0.5) * nearness for place in range(first, last)]
        weights = [_cubic(d, -0.5) if cubic else max(0.0, 1.0 - abs(d)) for d in distances]
        total = sum(weights)
        rows.append(tuple((first + n, weight / total if total else weight) for n, weight in enumerate(weights)))
    return Taps(size, tuple(rows))


def reflection_places(size: int, before: int, after: int) -> list[int]:
    """Return the sources of a dimension padded by reflection; the border is not repeated."""
    period = max(1, 2 * size - 2)
    return [(size - 1) - abs((size - 1) - place % period) for place in range(-before, size + after)]


def replication_places(size: int, before: int, after: int) -> list[int]:
    """Return the sources of a dimension padded by repeating the border."""
    return [min(max(place, 0), size - 1) for place in range(-before, size + after)]


def circular_places(size: int, before: int, after: int) -> list[int]:
    """Return the sources of a dimension that is continued round; negative widths cut off first."""
    first, last = max(0, -before), size + min(0, after)
    return [first + place % (last - first) for place in range(-max(0, before), last - first + max(0, after))]
