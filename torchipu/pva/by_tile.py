"""Numbers by tile of a report, made of the parts that the file holds."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from torchipu.pva.tables import Tables


class Patterns:
    """Numbers by tile, by their number in the file.

    Args:
        tables: Of the report.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.num_tiles = int(tables.number("num_tiles"))
        self.num_ipus = int(tables.number("num_ipus"))

    @cached_property
    def _parts(self) -> dict[int, list[tuple[int, int, int]]]:
        found: dict[int, list[tuple[int, int, int]]] = {}
        for row in self._tables.rows("patterns"):
            found.setdefault(row.pattern, []).append((row.first_tile, row.end_tile, row.value))
        return found

    def on_ipu(self, pattern: int) -> np.ndarray:
        """Return ``[tiles of an IPU]`` numbers of a pattern; all 0 where there is none."""
        found = np.zeros(self.num_tiles, np.int64)
        for first, end, value in self._parts.get(pattern, ()):
            found[first:end] = value
        return found

    def on_all(self, ipu: int, pattern: int, times: int = 1) -> list[int]:
        """Return numbers for the tiles of all IPUs, of which those of one have the pattern.

        Args:
            ipu: That one.
            pattern: Its number.
            times: On what they are multiplied.
        """
        found = np.zeros((self.num_ipus, self.num_tiles), np.int64)
        if 0 <= ipu < self.num_ipus:
            found[ipu] = self.on_ipu(pattern) * times
        numbers: list[int] = found.reshape(-1).tolist()
        return numbers
