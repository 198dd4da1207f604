"""The door to ``poptorch.Options``: every setting of a wrapped model or a loader, and the execution strategies."""

from torchipu.poptorch.options.files import ConfigFileError
from torchipu.poptorch.options.options import Options
from torchipu.poptorch.options.strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from torchipu.poptorch.options.tensor_locations import TensorLocationSettings

__all__ = [
    "ConfigFileError",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
]
