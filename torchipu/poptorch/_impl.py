"""Private names of PopTorch that programs are known to use."""

from __future__ import annotations

from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.poptorch_core import createPoptorchError

__all__ = ["createPoptorchError", "isRunningOnIpu"]
