"""Kernels that a loop of the plan needs around its steps: they count trips, move rows, and draw anew."""

from typing import NamedTuple

from .kernel import Kernel, Nothing


class CountInts(NamedTuple):
    """Integers of ``count``.

    Attributes:
        trips: With which the loop is done.
    """

    trips: int


COUNT = Kernel("count", {"counter": "LONG[1], trips so far", "done": "BOOL[1]"}, CountInts, Nothing, items="1")


class RowInts(NamedTuple):
    """Integers of ``take_row`` and ``put_row``.

    Attributes:
        row_bytes: Bytes of a row.
    """

    row_bytes: int


TAKE_ROW = Kernel(
    "take_row", {"row": "of this trip", "table": "of a row for each", "counter": "LONG[1]"}, RowInts, Nothing,
    items="bytes of a row",
)
PUT_ROW = Kernel(
    "put_row", {"table": "of a row for each trip", "row": "of this one", "counter": "LONG[1]"}, RowInts, Nothing,
    items="bytes of a row",
)
FORK = Kernel(
    "fork", {"mine": "random state LONG[4] of this trip", "all": "LONG[4] of the op", "counter": "LONG[1]"},
    Nothing, Nothing, items="1",
)
"""Gives each trip of a loop a seed of its own."""
