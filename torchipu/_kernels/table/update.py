"""Kernels of optimisers and gradient accumulation.

Each writes its state in place. Arithmetic is float, whatever the type in memory.
"""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

SPAN = 4096  # elements of an item of all kernels that take UpdateInts
ZERO_SPAN = 65536  # bytes of an item of fill_zero
BLOCKS_OF_ELEMENTS = "blocks of SPAN elements"
"""What the items of kernels that take ``UpdateInts`` are."""


class Hyper(IntEnum):
    """Place of each hyperparameter among the doubles that an optimiser reads; booleans are 0 or 1."""

    LR = 0
    BETA1 = 1
    BETA2 = 2
    EPS = 3
    WEIGHT_DECAY = 4
    MOMENTUM = 5
    DAMPENING = 6
    ALPHA = 7
    GRAD_SCALE = 8  # of gradients before all else: one over the accumulation factor, or over the loss scale
    MAXIMIZE = 9
    NESTEROV = 10
    AMSGRAD = 11
    CENTERED = 12
    BIAS_CORRECTION = 13
    MAX_WEIGHT_NORM = 14
    TRUST_COEFFICIENT = 15


HYPER = {each.name.lower(): each.value for each in Hyper}
"""The same places by the names that optimisers have for them."""
HYPER_WORDS = 16
HYPER_OPERAND = "[HYPER_WORDS] doubles in the order of Hyper"
STEP_OPERAND = "a float: the number of this update, from 1"
WORDS_OPERAND = "random words of each operand that is written, unless it is rounded to nearest"


class UpdateInts(NamedTuple):
    """Integers of the kernels that go over blocks of elements.

    Attributes:
        elements: Of each operand.
        halves: Bit k is set where operand k is half.
        flags: Of the kernel's own.
        overflow: What becomes of what is too large for a half.
        first_random: The operand from which on the random words lie by which those written are rounded; 0 to round to
            nearest.
        num_random: How many of them there are: one each, in the order of those written.
    """

    elements: int
    halves: int
    flags: int = 0
    overflow: int = 0
    first_random: int = 0
    num_random: int = 0


ACCUMULATE = Kernel(
    "accumulate",
    {"sum": "read and written", "gradient": "what is added", "random*": WORDS_OPERAND},
    UpdateInts,
    Nothing,
    items=BLOCKS_OF_ELEMENTS,
)


class FillZeroInts(NamedTuple):
    """Integers of ``fill_zero``.

    Attributes:
        num_bytes: Of the operand.
    """

    num_bytes: int


FILL_ZERO = Kernel(
    "fill_zero", {"zeros": "any memory"}, FillZeroInts, Nothing, items="blocks of ZERO_SPAN bytes"
)
INCREMENT = Kernel("increment", {"count": "a float, which becomes 1 more"}, Nothing, Nothing, items="one")


class SgdFlag(IntEnum):
    """Bits of the flags of ``sgd``."""

    HAS_MOMENTUM = 1


class AdamFlag(IntEnum):
    """Bits of the flags of ``adam``."""

    AMSGRAD = 1
    DECOUPLED = 2  # weight decay


class RmspropFlag(IntEnum):
    """Bits of the flags of ``rmsprop``."""

    HAS_MOMENTUM = 1
    CENTRED = 2
    OF_TENSORFLOW = 4  # eps under the root, the rate within the momentum


SGD = Kernel(
    "sgd",
    {
        "param": "updated", "momentum_buffer": "updated, where there is momentum", "grad": "its gradient",
        "hyper": HYPER_OPERAND, "step": STEP_OPERAND, "random*": WORDS_OPERAND,
    },
    UpdateInts,
    Nothing,
    items=BLOCKS_OF_ELEMENTS,
)
ADAM = Kernel(
    "adam",
    {
        "param": "updated", "exp_avg": "updated", "exp_avg_sq": "updated", "max_exp_avg_sq": "updated, for AMSGrad",
        "grad": "its gradient", "hyper": HYPER_OPERAND, "step": STEP_OPERAND, "random*": WORDS_OPERAND,
    },
    UpdateInts,
    Nothing,
    items=BLOCKS_OF_ELEMENTS,
)
RMSPROP = Kernel(
    "rmsprop",
    {
        "param": "updated", "square_avg": "updated", "momentum_buffer": "updated, where there is momentum",
        "grad_avg": "updated, where it is centred", "grad": "its gradient", "hyper": HYPER_OPERAND,
        "step": STEP_OPERAND, "random*": WORDS_OPERAND,
    },
    UpdateInts,
    Nothing,
    items=BLOCKS_OF_ELEMENTS,
)
