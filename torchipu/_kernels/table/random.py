"""Kernels that draw random values: each is a function of (seed, replica, op, micro-batch, element) and of nothing else.

Element 16 w + lane of item i is word w of the Philox block with the counter (16 i + lane, micro-batch, op, replica)
under the key (seed low, seed high), whatever the vector length. A uniform number has 24 bits of such a word. The upper
half of the word of the op counts elements before the first one here: a vertex draws those of its part of a result.
"""

from typing import NamedTuple

from .kernel import Kernel, Nothing

RANDOM_ITEM = 64  # elements of an item
RANDOM_BITS = 24  # of a uniform number in [0, 1)
BLOCKS_OF_WORDS = "blocks of RANDOM_ITEM elements"
STATE_OPERAND = "[seed, replica, op, micro-batch] of int64"


class RandomInts(NamedTuple):
    """Integers of the kernels that need no more than the number of values.

    Attributes:
        elements: Values that are drawn.
    """

    elements: int


RANDOM_WORDS = Kernel(
    "random_words", {"out": "[elements] of int32, the raw words, for tests", "state": STATE_OPERAND}, RandomInts,
    Nothing, items=BLOCKS_OF_WORDS,
)


class DropoutScalars(NamedTuple):
    """Real numbers of ``random_dropout``.

    Attributes:
        keep: Probability that an element is kept.
        scale: Factor on what is kept.
    """

    keep: float
    scale: float


RANDOM_DROPOUT = Kernel(
    "random_dropout",
    {
        "out": "[elements], float", "mask": "[elements], BOOL: what is kept", "state": STATE_OPERAND,
        "source": "[elements], float",
    },
    RandomInts,
    DropoutScalars,
    items=BLOCKS_OF_WORDS,
)


class BernoulliInts(NamedTuple):
    """Integers of ``random_bernoulli``.

    Attributes:
        elements: Values that are drawn.
        has_chances: Whether each has a probability of its own.
    """

    elements: int
    has_chances: bool


class BernoulliScalars(NamedTuple):
    """Real numbers of ``random_bernoulli``.

    Attributes:
        chance: Probability of a 1, unless each has its own.
    """

    chance: float


RANDOM_BERNOULLI = Kernel(
    "random_bernoulli",
    {"out": "[elements], float", "state": STATE_OPERAND, "chances?": "[elements], float, where has_chances"},
    BernoulliInts,
    BernoulliScalars,
    items=BLOCKS_OF_WORDS,
)


class UniformInts(NamedTuple):
    """Integers of ``random_uniform``.

    Attributes:
        elements: Values that are drawn.
        bits: Of each, at most RANDOM_BITS; with 11 no value becomes 1 when it is rounded to half.
    """

    elements: int
    bits: int


class UniformScalars(NamedTuple):
    """Real numbers of ``random_uniform``.

    Attributes:
        low: Least value.
        span: From there to the end, which is not drawn.
    """

    low: float
    span: float


RANDOM_UNIFORM = Kernel(
    "random_uniform", {"out": "[elements], float", "state": STATE_OPERAND}, UniformInts, UniformScalars,
    items=BLOCKS_OF_WORDS,
)


class NormalScalars(NamedTuple):
    """Real numbers of ``random_normal``.

    Attributes:
        mean: Of the distribution.
        deviation: Of the distribution.
    """

    mean: float
    deviation: float


RANDOM_NORMAL = Kernel(
    "random_normal", {"out": "[elements], float", "state": STATE_OPERAND}, RandomInts, NormalScalars,
    items=BLOCKS_OF_WORDS,
)
"""By the transform of Box and Muller, of words 0 and 1, and of words 2 and 3, of each block."""


class RandomIntegersInts(NamedTuple):
    """Integers of ``random_integers``.

    Attributes:
        elements: Values that are drawn.
        low: Least value.
        span: How many values there are, at most 2^32.
    """

    elements: int
    low: int
    span: int


RANDOM_INTEGERS = Kernel(
    "random_integers", {"out": "[elements], LONG", "state": STATE_OPERAND}, RandomIntegersInts, Nothing,
    items=BLOCKS_OF_WORDS,
)


class ExponentialScalars(NamedTuple):
    """Real numbers of ``random_exponential``.

    Attributes:
        rate: One over the mean.
    """

    rate: float


RANDOM_EXPONENTIAL = Kernel(
    "random_exponential", {"out": "[elements], float", "state": STATE_OPERAND}, RandomInts, ExponentialScalars,
    items=BLOCKS_OF_WORDS,
)
RANDOM_PERMUTATION = Kernel(
    "random_permutation", {"out": "[elements], LONG", "state": STATE_OPERAND}, RandomInts, Nothing, items="one"
)
"""By the shuffle of Fisher and Yates; the word of an element chooses the partner of its place."""


class RandomChoiceInts(NamedTuple):
    """Integers of ``random_choice``.

    Attributes:
        choices: Weights of a row.
        samples: That are drawn from a row.
        replaces: Whether a choice may be drawn again.
    """

    choices: int
    samples: int
    replaces: bool


RANDOM_CHOICE = Kernel(
    "random_choice",
    {"out": "[rows][samples], LONG", "state": STATE_OPERAND, "weights": "[rows][choices], float"},
    RandomChoiceInts,
    Nothing,
    items="rows",
    scratch="8 bytes for each choice, and behind them 8 for each sample",
)
"""With replacement, each draw looks for a uniform number among the running sums. Without, every place waits for an
exponential time divided by its weight, and the first ones are taken. Words of a row are those of the elements from
row * ceil(max(choices, samples) / RANDOM_ITEM) * RANDOM_ITEM on."""
