"""Kernels of losses. A reduced loss is summed over fixed chunks in float, and over the chunks in double."""

from enum import IntEnum
from typing import NamedTuple

from .convert import Stored
from .kernel import Kernel, Nothing


class Reduction(IntEnum):
    """Of a loss; torch.nn._reduction."""

    NONE = 0
    MEAN = 1
    SUM = 2


class PairLoss(IntEnum):
    """What the loss of a pair of elements is."""

    MSE = 0
    SMOOTH_L1 = 1
    HUBER = 2
    CROSS_ENTROPY = 3
    CROSS_ENTROPY_LOGITS = 4


class NllInts(NamedTuple):
    """Integers of ``nll``.

    Attributes:
        positions: Of all samples: outer * inner.
        classes: How many there are.
        inner: Positions of a sample.
        ignored: The class that has no loss.
        reduction: Of the loss.
        target_bytes: Bytes of a label.
        has_weight: Whether each class has one.
        chunk: Positions of an item.
        stored: As what ``x`` lies in memory.
    """

    positions: int
    classes: int
    inner: int
    ignored: int
    reduction: Reduction
    target_bytes: int
    has_weight: bool
    chunk: int
    stored: Stored


NLL = Kernel(
    "nll",
    {
        "out": "[outer][inner] without a reduction, else partials [chunks][2]: loss and weight",
        "x": "[outer][classes][inner]", "target": "[outer][inner]; a class out of range is a trap",
        "weight": "[classes], or anything",
    },
    NllInts, Nothing, items="chunks",
)


class NllTotalInts(NamedTuple):
    """Integers of ``nll_total``.

    Attributes:
        chunks: How many partials there are.
        is_mean: Whether the loss is divided by the weight.
    """

    chunks: int
    is_mean: bool


NLL_TOTAL = Kernel(
    "nll_total", {"loss": "[]", "total_weight": "[]", "partials": "[chunks][2]"}, NllTotalInts, Nothing, items="1",
)


class NllGradInts(NamedTuple):
    """Integers of ``nll_grad``.

    Attributes:
        classes: How many there are.
        inner: Positions of a sample.
        ignored: The class that has no loss.
        reduction: Of the loss.
        target_bytes: Bytes of a label.
        has_weight: Whether each class has one.
    """

    classes: int
    inner: int
    ignored: int
    reduction: Reduction
    target_bytes: int
    has_weight: bool


NLL_GRAD = Kernel(
    "nll_grad",
    {
        "dx": "[outer][classes][inner]", "dy": "[] or [outer][inner]", "target": "[outer][inner]",
        "weight": "[classes], or anything", "total_weight": "[]",
    },
    NllGradInts, Nothing, items="outer",
)


class PairLossInts(NamedTuple):
    """Integers of ``pair_loss``.

    Attributes:
        elements: How many there are.
        kind: Which loss.
        reduction: Of the loss.
        has_weight: Whether each element has one.
        period: After how many elements the positive weights repeat; 0 where there are none.
        chunk: Elements of an item.
    """

    elements: int
    kind: PairLoss
    reduction: Reduction
    has_weight: bool
    period: int
    chunk: int


class PairLossScalars(NamedTuple):
    """Real numbers of ``pair_loss``.

    Attributes:
        beta: Of smooth L1; the delta of Huber.
    """

    beta: float


PAIR_LOSS = Kernel(
    "pair_loss",
    {
        "out": "[elements] without a reduction, else partials [chunks]", "x": "[elements]", "target": "[elements]",
        "weight": "[elements], or anything", "positive_weight": "[period], or anything",
    },
    PairLossInts, PairLossScalars, items="chunks",
)


class PairTotalInts(NamedTuple):
    """Integers of ``pair_total``.

    Attributes:
        chunks: How many partials there are.
    """

    chunks: int


class PairTotalScalars(NamedTuple):
    """Real numbers of ``pair_total``.

    Attributes:
        divisor: Of the sum.
    """

    divisor: float


PAIR_TOTAL = Kernel(
    "pair_total", {"loss": "[]", "partials": "[chunks]"}, PairTotalInts, PairTotalScalars, items="1",
)


class PairLossGradInts(NamedTuple):
    """Integers of ``pair_loss_grad``.

    Attributes:
        kind: Which loss.
        reduction: Of the loss.
        has_weight: Whether each element has one.
    """

    kind: PairLoss
    reduction: Reduction
    has_weight: bool


class PairLossGradScalars(NamedTuple):
    """Real numbers of ``pair_loss_grad``.

    Attributes:
        beta: Of smooth L1; the delta of Huber.
        divisor: Of the sum.
    """

    beta: float
    divisor: float


PAIR_LOSS_GRAD = Kernel(
    "pair_loss_grad",
    {
        "dx": "[elements]", "dy": "[] or [elements]", "x": "[elements]", "target": "[elements]",
        "weight": "[elements], or anything",
    },
    PairLossGradInts, PairLossGradScalars, items="elements",
)
