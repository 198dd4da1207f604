"""Kernels of gradient clipping, loss scaling, running means and sums over replicas."""

from typing import NamedTuple

from .kernel import AnyKernel, Kernel, Nothing

BLOCK_SQUARES: AnyKernel = Kernel("block_squares")
ADD_DOUBLES: AnyKernel = Kernel("add_doubles")
CLIP: AnyKernel = Kernel("clip")
CLIP_VALUES: AnyKernel = Kernel("clip_values")
UNSCALE: AnyKernel = Kernel("unscale")
BLOCK_COUNTS: AnyKernel = Kernel("block_counts")
ADD_COUNTS: AnyKernel = Kernel("add_counts")
JOIN_COUNTS: AnyKernel = Kernel("join_counts")
ADAPT_SCALE: AnyKernel = Kernel("adapt_scale")
ACCUMULATE_MEAN: AnyKernel = Kernel("accumulate_mean")


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
ADD: AnyKernel = Kernel("add")
FOLD_REPLICA: AnyKernel = Kernel("fold_replica")


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
