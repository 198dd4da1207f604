"""The enumerations of PopART that PopTorch programs pass to ``Options._Popart.set``; nothing else of PopART."""

from __future__ import annotations

import enum


class AccumulateOuterFragmentSchedule(enum.IntEnum):
    """How the weight updates after gradient accumulation are ordered."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class SyntheticDataMode(enum.IntEnum):
    """What the device computes with instead of the data of the host."""

    Off = 0
    Zeros = 1
    RandomNormal = 2


class SubgraphCopyingStrategy(enum.IntEnum):
    """When inputs and outputs of a subgraph are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


# By mapping, since None is no name in Python source: getattr(RecomputationType, "None") finds it all the same.
RecomputationType = enum.IntEnum(
    "RecomputationType", {"NoRecompute": 0, "None": 0, "Standard": 1, "NormOnly": 2, "Pipeline": 3, "RecomputeAll": 4}
)
RecomputationType.__doc__ = "Which results of the forward are computed again in the backward."


class VirtualGraphMode(enum.IntEnum):
    """How ops are given to IPUs."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class BatchSerializationBatchSchedule(enum.IntEnum):
    """In which order the parts of a serialised batch run."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


class GradientTensorTrackingMethod(enum.IntEnum):
    """Which gradients automatic loss scaling looks at."""

    AllNonViewChangingGradientTensors = 0
    ConvAndMatmulGradients = 1
    GradientsOfUserSpecifiedTensors = 2
