"""Numbers by tile, of which programs with repeated layers have few that differ."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from torchipu.report.facts import rows

NONE = -1
"""Number of a pattern that there is not."""


class Patterns:
    """Numbers by tile, equal ones under one number."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def number(self, by_tile: np.ndarray) -> int:
        """Return the number of a pattern.

        Args:
            by_tile: ``[num_tiles]`` whole numbers.
        """
        return self._numbers.setdefault(np.ascontiguousarray(by_tile, np.int64).tobytes(), len(self._numbers))

    def rows(self) -> Iterator[rows.Pattern]:
        """Yield the parts of all patterns that are not 0, tiles with the same number together."""
        for held, number in self._numbers.items():
            by_tile = np.frombuffer(held, np.int64)
            borders = [0, *(np.flatnonzero(np.diff(by_tile)) + 1).tolist(), by_tile.size]
            for first, end in pairwise(borders):
                if end > first and by_tile[first]:
                    yield rows.Pattern(number, first, end, int(by_tile[first]))
