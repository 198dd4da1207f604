"""Kernels that bring planes of pixels into blocks of channels and back.

In the blocked layout ``[images][blocks][pixels][lanes]`` the lanes are neighbouring channels, as many as a vector of
the machine holds; what lies behind the last channel says nothing.
"""

from typing import NamedTuple

from .kernel import Kernel, Nothing


class BlockedLayoutInts(NamedTuple):
    """Integers of ``to_blocked`` and ``from_blocked``.

    Attributes:
        channels: Of an image.
        pixels: Of a plane.
        part: Pixels of an item, a multiple of the lanes.
    """

    channels: int
    pixels: int
    part: int


TO_BLOCKED = Kernel(
    "to_blocked", {"y": "[n][blocks][pixels][lanes]", "x": "[n][channels][pixels]"}, BlockedLayoutInts, Nothing,
    items="n * blocks * parts of the pixels",
)
FROM_BLOCKED = Kernel(
    "from_blocked", {"y": "[n][channels][pixels]", "x": "[n][blocks][pixels][lanes]"}, BlockedLayoutInts, Nothing,
    items="n * blocks * parts of the pixels",
)


class MoveBlockedInts(NamedTuple):
    """Integers of ``move_blocked``.

    Attributes:
        channels: That are copied.
        source: The first of them in what is read.
        target: Its channel in what is written.
        x_blocks: Blocks of an image that is read.
        y_blocks: Blocks of an image that is written.
        pixels: Of a plane.
        part: Pixels of an item.
    """

    channels: int
    source: int
    target: int
    x_blocks: int
    y_blocks: int
    pixels: int
    part: int


MOVE_BLOCKED = Kernel(
    "move_blocked",
    {"y": "[n][y_blocks][pixels][lanes], of which other channels stay", "x": "[n][x_blocks][pixels][lanes]"},
    MoveBlockedInts, Nothing, items="n * blocks that are written * parts of the pixels",
)
VECTOR_LANES = Kernel("vector_lanes", {"lanes": "LONG[1]: floats of a vector"}, Nothing, Nothing)
