"""Kernels of gradient clipping, loss scaling, running means and sums over replicas.

Sums and counts are 64-bit words; sums are doubles, added up in the order of the blocks.
"""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing
from .update import BLOCKS_OF_ELEMENTS, HYPER_OPERAND, WORDS_OPERAND, UpdateInts

BLOCK_SQUARES = Kernel(
    "block_squares", {"sums": "of squares, a double for each block", "grad": "what is squared"}, UpdateInts, Nothing,
    items=BLOCKS_OF_ELEMENTS,
)


class AddDoublesInts(NamedTuple):
    """Integers of ``add_doubles``.

    Attributes:
        num_terms: Operands with terms.
        words: How many terms each has.
    """

    num_terms: int
    words: tuple[int, ...]


ADD_DOUBLES = Kernel(
    "add_doubles", {"sum": "a double", "terms*": "doubles"}, AddDoublesInts, Nothing, items="one"
)


class ClipScalars(NamedTuple):
    """Real numbers of ``clip``.

    Attributes:
        largest: Norm that gradients may have.
    """

    largest: float


CLIP = Kernel(
    "clip",
    {"clipped": HYPER_OPERAND + ", with another GRAD_SCALE", "hyper": HYPER_OPERAND, "squares": "their sum, a double"},
    Nothing,
    ClipScalars,
    items="one",
)
"""The factor on gradients that brings their norm down to the largest: that of ``torch.nn.utils.clip_grad_norm_``, NaN
where the norm is NaN."""


class ClipValuesScalars(NamedTuple):
    """Real numbers of ``clip_values``.

    Attributes:
        largest: Magnitude that elements may have when they have been multiplied by GRAD_SCALE.
    """

    largest: float


CLIP_VALUES = Kernel(
    "clip_values", {"clipped": "may be half", "grad": "may be half", "hyper": HYPER_OPERAND}, UpdateInts,
    ClipValuesScalars, items=BLOCKS_OF_ELEMENTS,
)
"""Elements beyond the largest are brought there: ``torch.nn.utils.clip_grad_value_``, which leaves NaN alone."""
UNSCALE = Kernel(
    "unscale",
    {
        "unscaled": HYPER_OPERAND + ", with GRAD_SCALE divided by the loss scale", "hyper": HYPER_OPERAND,
        "loss_scale": "a float",
    },
    Nothing,
    Nothing,
    items="one",
)


class BlockCountsScalars(NamedTuple):
    """Real numbers of ``block_counts``.

    Attributes:
        edge: Magnitude beyond which an element counts; NaN does.
    """

    edge: float


BLOCK_COUNTS = Kernel(
    "block_counts", {"counts": "of elements beyond the edge, a word for each block", "grad": "may be half"}, UpdateInts,
    BlockCountsScalars, items=BLOCKS_OF_ELEMENTS,
)


class AddCountsInts(NamedTuple):
    """Integers of ``add_counts``.

    Attributes:
        blocks: That were counted.
        elements: That they hold.
    """

    blocks: int
    elements: int


ADD_COUNTS = Kernel(
    "add_counts", {"counter": "beyond and all, updated", "counts": "[blocks]"}, AddCountsInts, Nothing, items="one"
)


class JoinCountsInts(NamedTuple):
    """Integers of ``join_counts``.

    Attributes:
        counters: How many there are.
    """

    counters: int


JOIN_COUNTS = Kernel(
    "join_counts", {"counter": "beyond and all", "counters*": "likewise"}, JoinCountsInts, Nothing, items="one"
)


class AdaptScaleInts(NamedTuple):
    """Integers of ``adapt_scale``.

    Attributes:
        period: Updates after which the scale changes.
    """

    period: int


class AdaptScaleScalars(NamedTuple):
    """Real numbers of ``adapt_scale``.

    Attributes:
        share: Of elements beyond the edge that is too many.
        factor: By which the scale changes.
        least: Scale.
        most: Scale.
    """

    share: float
    factor: float
    least: float
    most: float


ADAPT_SCALE = Kernel(
    "adapt_scale",
    {
        "loss_scale": "a float, updated",
        "history": "beyond, all and updates since the last change, updated",
        "counter": "beyond and all",
    },
    AdaptScaleInts,
    AdaptScaleScalars,
    items="one",
)
ACCUMULATE_MEAN = Kernel(
    "accumulate_mean",
    {
        "mean": "updated: of the count + 1 gradients so far", "grad": "may be half", "count": "a float",
        "random*": WORDS_OPERAND,
    },
    UpdateInts,
    Nothing,
    items=BLOCKS_OF_ELEMENTS,
)


class ReplicaMeanInts(NamedTuple):
    """Integers of ``replica_mean``.

    Attributes:
        elements: Of the values of a replica.
        group: Neighbouring replicas that share a mean.
        replicas: How many there are; the executor's.
        apart: Bytes from one replica's memory to the next; the executor's.
    """

    elements: int
    group: int
    replicas: int = 0
    apart: int = 0


REPLICA_MEAN = Kernel(
    "replica_mean",
    {"mean": "floats of the first replica", "values": "likewise"},
    ReplicaMeanInts,
    Nothing,
    items="1",
)


class Summed(IntEnum):
    """What is added up."""

    FLOATS = 0
    HALVES = 1  # a sum of two is rounded to the nearest
    WORDS = 2


class AddInts(NamedTuple):
    """Integers of ``add``.

    Attributes:
        elements: Of each operand.
        summed: What they are.
    """

    elements: int
    summed: Summed


ADD = Kernel(
    "add", {"sum": "may lie where an operand does", "left": "a term", "right": "a term"}, AddInts, Nothing,
    items=BLOCKS_OF_ELEMENTS,
)


class FoldReplicaInts(NamedTuple):
    """Integers of ``fold_replica``.

    Attributes:
        elements: Of each sum.
        summed: What they are.
        slots: Of the stack.
        pushes: For each replica, how many sums lie on the stack before it, and how many of them it joins.
    """

    elements: int
    summed: Summed
    slots: int
    pushes: tuple[int, ...]


class FoldReplicaScalars(NamedTuple):
    """Real numbers of ``fold_replica``.

    Attributes:
        factor: Of what the replica has.
    """

    factor: float


FOLD_REPLICA = Kernel(
    "fold_replica",
    {"slots*": "sums on a stack", "held": "what a replica has", "number": "of the replica, a word"},
    FoldReplicaInts,
    FoldReplicaScalars,
    items=BLOCKS_OF_ELEMENTS,
)
"""What the replica has, times the factor, is added to the topmost sums, the latest first, each time as its type holds
it, and put on the stack in their place."""


class SignalInts(NamedTuple):
    """Integers of ``signal``.

    Attributes:
        calls: How many there are before the signal is given.
        descriptor: Of the eventfd by which it is given; the executor's.
    """

    calls: int
    descriptor: int = 0


SIGNAL = Kernel("signal", {"count": "of calls so far"}, SignalInts, Nothing, items="1")
"""Tells whoever waits for a descriptor that all calls have come; the count begins anew."""
