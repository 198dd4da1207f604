"""Private names of PopTorch that programs are known to use."""

from __future__ import annotations

from torchipu.poptorch.arguments.parser import ArgsParser
from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.capturing import isRunningOnIpu as isDispatchTracing
from torchipu.poptorch.executor.instrumentation import (
    PoptorchBuffer,
    PoptorchParameter,
    rewrapModelIfNecessary,
    unwrapModelIfNecessary,
)
from torchipu.poptorch.operators.casting import internal_cast
from torchipu.poptorch.poptorch_core import createPoptorchError

__all__ = [
    "ArgsParser",
    "PoptorchBuffer",
    "PoptorchParameter",
    "createPoptorchError",
    "internal_cast",
    "isDispatchTracing",
    "isRunningOnIpu",
    "rewrapModelIfNecessary",
    "unwrapModelIfNecessary",
]
