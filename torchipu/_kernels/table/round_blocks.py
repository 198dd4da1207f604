"""The kernel that ends others whose results are halves or bfloats: it rounds what they have written.

It ends a call of any kernel, chunk by chunk, on the thread and in the cache where the floats are. Its items are those
of the kernel that it ends.
"""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

BLOCK_DIMS = 6  # of the space that items cut into blocks, at most


class HalfOverflow(IntEnum):
    """What becomes of a value beyond 65504."""

    INFINITY = 0
    NAN = 1
    SATURATE = 2  # the largest half


class Kept(IntEnum):
    """What is left of results that have been rounded."""

    HALVES = 0
    FLOATS = 1  # which are halves' values, where they were computed; no halves are written
    BOTH = 2


class BlockDim(NamedTuple):
    """A dimension of the space that items cut into blocks.

    Place x is element ``x % inner * step + x / inner % middle * outer + x / inner / middle * outmost`` of the result.

    Attributes:
        size: Places.
        block: Places of an item; the last block may be shorter.
        inner: Places after which ``outer`` applies.
        step: Elements of the result from one place to the next.
        middle: How often ``outer`` applies before ``outmost`` does.
        outer: Elements from one run of ``inner`` places to the next.
        outmost: Elements from one run of ``inner * middle`` places to the next.
    """

    size: int
    block: int
    inner: int
    step: int
    middle: int
    outer: int
    outmost: int


class RoundBlocksInts(NamedTuple):
    """Integers of ``round_blocks``.

    Attributes:
        overflow: What becomes of what is too large for a half.
        first: Element of the result that the first place of the space is.
        begins: Element of the result with which the floats begin.
        num_dims: Dimensions of the space, at most BLOCK_DIMS.
        along: Which of them a run of elements goes along.
        keeps: What is left.
        to_bfloats: Whether floats become bfloats, to nearest, and stay what they are where they are.
        run: Elements that an item writes where all lie side by side, item after item; else 0, and the dimensions tell.
        elements: Of the result.
        dims: Each of them.
    """

    overflow: HalfOverflow
    first: int
    begins: int
    num_dims: int
    along: int
    keeps: Kept
    to_bfloats: bool
    run: int
    elements: int
    dims: tuple[BlockDim, ...]


ROUND_BLOCKS = Kernel(
    "round_blocks",
    {
        "floats": "what is rounded, and written where it is kept", "halves": "of the same places, where these are kept",
        "random?": "random words; absent to round to nearest",
    },
    RoundBlocksInts,
    Nothing,
    items="blocks of the space, the last dimension fastest",
)
"""The bits of an element are those of its number within the result, whoever writes it and in whatever order."""
