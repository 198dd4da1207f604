"""Kernels of optimisers that scale the update of a whole tensor: LAMB and LARS.

Each takes three: one over blocks of elements that leaves the sums of squares of every block, one that makes the ratio
of the norms of them, in the order of the blocks, and one over blocks that applies the update.
"""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing
from .update import BLOCKS_OF_ELEMENTS, HYPER_OPERAND, STEP_OPERAND, WORDS_OPERAND, UpdateInts

PARTIAL_OPERAND = "[blocks][2] doubles: sums of squares of the parameter, and of the direction or gradient"
RATIO_OPERAND = "a float, what `trust_ratio` makes"

LAMB_DIRECTION = Kernel(
    "lamb_direction",
    {
        "exp_avg": "updated", "exp_avg_sq": "updated", "direction": "float: Adam's, with the weight decay",
        "partial": PARTIAL_OPERAND, "param": "read", "grad": "its gradient", "hyper": HYPER_OPERAND,
        "step": STEP_OPERAND, "random*": "random words of the first two, unless they are rounded to nearest",
    },
    UpdateInts,
    Nothing,
    items=BLOCKS_OF_ELEMENTS,
)
LARS_NORMS = Kernel(
    "lars_norms", {"partial": PARTIAL_OPERAND, "param": "read", "grad": "its gradient, unscaled"}, UpdateInts, Nothing,
    items=BLOCKS_OF_ELEMENTS,
)


class Layerwise(IntEnum):
    """By which rule the ratio is made; it is 1 where either norm is 0."""

    LAMB = 0  # min(|param|, max_weight_norm) / |direction|
    LARS = 1  # trust_coefficient |param| / (|grad| + weight_decay |param| + eps)


class TrustRatioInts(NamedTuple):
    """Integers of ``trust_ratio``.

    Attributes:
        blocks: Whose sums there are.
        rule: Of the ratio.
    """

    blocks: int
    rule: Layerwise


TRUST_RATIO = Kernel(
    "trust_ratio", {"ratio": "a float", "partial": PARTIAL_OPERAND, "hyper": HYPER_OPERAND}, TrustRatioInts, Nothing,
    items="one",
)
LAMB_APPLY = Kernel(
    "lamb_apply",
    {
        "param": "updated", "ratio": RATIO_OPERAND, "direction": "of `lamb_direction`", "hyper": HYPER_OPERAND,
        "random*": WORDS_OPERAND,
    },
    UpdateInts,
    Nothing,
    items=BLOCKS_OF_ELEMENTS,
)
LARS_APPLY = Kernel(
    "lars_apply",
    {
        "param": "updated", "momentum_buffer": "updated: updates, learning rate included", "ratio": RATIO_OPERAND,
        "grad": "its gradient", "hyper": HYPER_OPERAND, "random*": WORDS_OPERAND,
    },
    UpdateInts,
    Nothing,
    items=BLOCKS_OF_ELEMENTS,
)
"""You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017."""
