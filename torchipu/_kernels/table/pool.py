"""Kernels of pooling."""

from typing import NamedTuple

from .kernel import AnyKernel, Kernel, Nothing

MAX_POOL: AnyKernel = Kernel("max_pool")


class PlacingInts(NamedTuple):
    """Integers of kernels that put values where indices say.

    Attributes:
        outputs: Positions of a result.
        inputs: Values that are put into it.
    """

    outputs: int
    inputs: int


MAX_POOL_BACKWARD = Kernel(
    "max_pool_backward",
    {
        "images_grad": "[planes][outputs], the sum of what the indices put at one place",
        "pooled_grad": "[planes][inputs]",
        "indices": "[planes][inputs] of int64, flat in the result",
    },
    PlacingInts,
    Nothing,
    items="planes",
)
AVG_POOL: AnyKernel = Kernel("avg_pool")
AVG_POOL_BACKWARD: AnyKernel = Kernel("avg_pool_backward")
ADAPTIVE_POOL: AnyKernel = Kernel("adaptive_pool")
ADAPTIVE_POOL_BACKWARD: AnyKernel = Kernel("adaptive_pool_backward")
