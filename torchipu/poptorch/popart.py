"""The enumerations of PopART that PopTorch programs pass to ``Options._Popart.set``; nothing else of PopART."""

from __future__ import annotations

import enum
from typing import Any

__path__: list[str] = []
"""No folder, but a package for the import system: ``import popart.ir`` then gets the alias's word and not Python's."""

BUILDING = frozenset({
    "Adam", "AnchorReturnType", "Builder", "ConstSGD", "CreateDevice", "DataFlow", "DeviceManager", "InferenceSession",
    "InitMode", "Ir", "OptimizerValue", "Patterns", "PatternsLevel", "PyStepIO", "PyStepIOCallback", "PyWeightsIO",
    "SGD", "Session", "SessionOptions", "StepIOCallback", "TensorInfo", "TrainingSession", "WeightsIO", "builder",
    "getLogger", "ir", "session", "tensorinfo", "writer",
})
"""Names by which programs build and run graphs of PopART's own."""


def __getattr__(name: str) -> Any:
    """Refuse what builds graphs of PopART's own; ImportError reaches the reader of ``from popart import Builder`` too.

    Raises:
        ImportError: The name is one of these.
        AttributeError: It is none that is known.
    """
    if name in BUILDING:
        raise ImportError(
            f"popart.{name}: graphs built with PopART are out of torchipu's scope; popart here holds only the "
            "enumerations that poptorch.Options()._Popart takes. Write the model in torch and run it by "
            'torch.compile(model, backend="ipu"), torchipu.TrainStep or poptorch.trainingModel; torchipu.from_onnx '
            "makes a module of an ONNX file, as PopART takes one.", name="popart",
        )
    raise AttributeError(f"module 'popart' has no attribute {name!r}")



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
