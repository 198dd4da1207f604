"""Kernels of the tile machine that move bytes between tiles and say which value owns each of them.

A memory is the bytes of all tiles of an IPU one behind the other; its owners are a number for each byte, 0 for bytes
that nobody has written.
"""

from typing import NamedTuple

from .kernel import Kernel, Nothing
from .random import STATE_OPERAND
from .round_blocks import HalfOverflow

FAULT_OPERAND = "[1] LONG: the first that was refused, or -1"


class TileMoveInts(NamedTuple):
    """Integers of ``tile_move``.

    Attributes:
        elements: How many are moved.
        element_bytes: Of each.
        to_owner: Whose the bytes are afterwards.
        from_owner: Whose they have to be before.
        pad: The bits of an element whose place in ``from`` is negative.
    """

    elements: int
    element_bytes: int
    to_owner: int
    from_owner: int
    pad: int


TILE_MOVE = Kernel(
    "tile_move",
    {
        "to": "a memory", "to_owners": "of its bytes", "fault": FAULT_OPERAND, "from": "a memory",
        "from_owners": "of its bytes", "to_places": "[elements] LONG, in bytes", "from_places": "[elements] LONG",
    },
    TileMoveInts,
    Nothing,
    items="one",
)
"""Stops at the first element of which a byte has another owner."""


class TileOwnInts(NamedTuple):
    """Integers of ``tile_own`` and ``tile_check``.

    Attributes:
        ranges: How many there are.
        owner: Whose bytes they are.
    """

    ranges: int
    owner: int


TILE_OWN = Kernel(
    "tile_own", {"owners": "of a memory's bytes", "begin": "[ranges] LONG, in bytes", "bytes": "[ranges] LONG"},
    TileOwnInts, Nothing, items="one",
)
"""Makes bytes somebody's."""
TILE_CHECK = Kernel(
    "tile_check",
    {
        "fault": FAULT_OPERAND, "owners": "of a memory's bytes", "begin": "[ranges] LONG, in bytes",
        "bytes": "[ranges] LONG",
    },
    TileOwnInts, Nothing, items="one",
)
"""Looks for the first range of which a byte is not somebody's."""


class TileWidenInts(NamedTuple):
    """Integers of ``tile_widen`` and ``tile_narrow``.

    Attributes:
        elements: How many there are.
    """

    elements: int


TILE_WIDEN = Kernel(
    "tile_widen", {"wide": "[elements] doubles", "given": "[elements] floats"}, TileWidenInts, Nothing, items="one",
)
"""Gives hyper-parameters, which are floats on the tiles, as the optimisers' kernels read them."""
TILE_NARROW = Kernel(
    "tile_narrow", {"given": "[elements] floats", "wide": "[elements] doubles"}, TileWidenInts, Nothing, items="one",
)
"""The way back."""


class TileRoundInts(NamedTuple):
    """Integers of ``tile_round``.

    Attributes:
        overflow: What becomes of what is too large for a half.
    """

    overflow: HalfOverflow


TILE_ROUND = Kernel(
    "tile_round",
    {
        "halves": "[elements]", "floats": "[elements]", "state": STATE_OPERAND,
        "runs": "[runs][3] LONG: number of the first element, how many there are, from one to the next",
        "num_runs": "[1] LONG",
    },
    TileRoundInts,
    Nothing,
    items="one",
)
"""Rounds elements of a result stochastically, by the bits of their numbers within it; see ``round_blocks``."""
